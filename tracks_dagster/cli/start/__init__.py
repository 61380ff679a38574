"""Commands that start something and follow it."""
