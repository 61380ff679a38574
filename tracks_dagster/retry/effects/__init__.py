"""Pools and nodes as the ledger and the tracks show them, and what people decide on them."""
