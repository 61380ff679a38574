"""Commands about machines and upkeep."""
