"""Dagster's own instance, on this machine and on a cluster, and the folder TRACKS_HOME."""
