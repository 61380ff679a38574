"""Text and values from outside: made valid, readable and free of secrets."""
