"""Makes snapshots, and reads them."""
