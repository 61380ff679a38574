"""Dagster's programs of a home, and the classes of its instance."""
