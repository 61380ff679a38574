"""Commands about reasons and policies: what is retried, played over histories and queues."""
