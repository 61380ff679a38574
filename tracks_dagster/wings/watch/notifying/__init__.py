"""Who is sent what: messages, channels, and when a failed one is tried again."""
