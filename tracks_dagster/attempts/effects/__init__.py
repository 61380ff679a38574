"""Launches, supervises, watches, drains and closes attempts."""
