"""Declares runs and opens their attempts."""
