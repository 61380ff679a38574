"""Collects, verifies, pins and deletes checkpoints."""
