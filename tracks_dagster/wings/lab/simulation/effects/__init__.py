"""Reads what happened and plays other policies over it."""
