"""Facts of runs, attempts, checkpoints and evals, each said once."""
