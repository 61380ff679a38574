"""What Dagster's processes load: the resource with what wiring built, and classes of its instance."""
