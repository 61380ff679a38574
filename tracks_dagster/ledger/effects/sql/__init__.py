"""`tracks sql`: one SELECT over the ledger, which it cannot change."""
