"""What listens, and calls the commands."""
