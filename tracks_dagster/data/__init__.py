"""Datasets, snapshots, projects, evals and promotions."""
