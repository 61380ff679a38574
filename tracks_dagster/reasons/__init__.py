"""From evidence to a termination reason. Pure."""
