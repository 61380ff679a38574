"""What the core can do without, a folder each; `tracks_dagster.wing` lists them."""
