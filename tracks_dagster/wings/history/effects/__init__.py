"""Reads sources and stores what they say."""
