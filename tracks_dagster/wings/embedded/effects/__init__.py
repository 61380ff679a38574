"""What acts on processes."""
