"""What descends from what, by the data and the checkpoints that were really consumed."""
