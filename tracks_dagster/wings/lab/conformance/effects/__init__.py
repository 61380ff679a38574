"""Runs the trials of `tracks conform`."""
