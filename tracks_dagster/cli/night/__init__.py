"""Commands for whoever was woken at night."""
