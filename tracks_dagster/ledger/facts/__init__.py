"""What may be known of a run, an attempt, a checkpoint and an eval: each fact once."""
