"""Explanations, reports, status, search and export, read from tracks and the ledger."""
