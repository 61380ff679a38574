"""Reads and appends leases in the track of a pool."""
