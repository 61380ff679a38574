"""The track: records, the rules of append, and what every room above it shares."""
