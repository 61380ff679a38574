"""Datasets, snapshots and projects."""
