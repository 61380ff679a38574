"""Reads the tails of journals, records alerts, and mutes them."""
