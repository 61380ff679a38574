"""Commands that look at runs while they train."""
