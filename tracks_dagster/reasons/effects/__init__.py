"""Reads cases and a user's rules from files."""
