"""Dagster's side: assets, resources and sensors, which observe, ask a room below, and yield."""
