"""Datasets, snapshots, model families, evals and promotions."""
