"""What sends elsewhere."""
