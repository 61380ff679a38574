"""Reads notify.yaml, leaves letters for its channels, and sends them."""
