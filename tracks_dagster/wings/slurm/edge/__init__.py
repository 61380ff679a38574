"""What the core and Dagster ask of this wing, and its commands."""
