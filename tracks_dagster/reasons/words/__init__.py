"""The words that tell a termination reason, as tables."""
