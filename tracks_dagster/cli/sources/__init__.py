"""Commands about checkpoints, snapshots and what descends from them."""
