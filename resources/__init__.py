"""Dagster resources: they hand out what wiring built."""
