"""Commands about machines and upkeep: pools, what is missing, what is damaged."""
