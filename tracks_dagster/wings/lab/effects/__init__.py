"""What reads the store and the ledger."""
