"""Commands that compare and count."""
