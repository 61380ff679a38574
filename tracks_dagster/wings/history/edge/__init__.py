"""Commands of this wing."""
