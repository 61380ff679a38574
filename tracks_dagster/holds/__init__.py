"""Holds: why nothing new starts from a thing; quarantines, and what descends from what."""
