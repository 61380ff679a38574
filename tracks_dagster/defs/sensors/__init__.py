"""Dagster sensors: observe, plan, yield; no logic of their own."""
