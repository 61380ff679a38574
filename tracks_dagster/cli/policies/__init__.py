"""Commands about reasons and retries."""
