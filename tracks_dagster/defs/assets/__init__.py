"""Dagster assets: snapshots, attempts, checkpoints, evals, promotions."""
