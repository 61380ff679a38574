"""Reads what triage looks at, and acts by it."""
