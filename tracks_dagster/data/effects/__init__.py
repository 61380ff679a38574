"""Makes snapshots, runs evals, promotes."""
