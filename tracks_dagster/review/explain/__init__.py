"""What `tracks explain` shows: its shape, its words, its layout. Pure."""
