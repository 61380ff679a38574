"""Where the seconds of runs went, and what failing cost: read from the ledger's views."""
