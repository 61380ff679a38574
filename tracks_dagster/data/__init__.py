"""Datasets and snapshots."""
