"""Whatever forbids to start from a source, and what descends from it."""
