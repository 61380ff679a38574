"""Holds, quarantines, stops and lineage, read from tracks and the ledger."""
