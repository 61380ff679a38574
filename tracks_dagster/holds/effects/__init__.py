"""Quarantines, withdrawals, stops and lineage, read from tracks and the ledger."""
