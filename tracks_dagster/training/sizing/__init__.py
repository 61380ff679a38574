"""`tracks size` in the script's own process: two steps, and the memory that they take."""
