"""What a rank sees of itself while it trains, for its journal: docs/signals.md."""
