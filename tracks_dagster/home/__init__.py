"""Dagster's own instance, on this machine, and the folder TRACKS_HOME."""
