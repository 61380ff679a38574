"""Checkpoints from inside the gang: saved, committed, restored, verified."""
