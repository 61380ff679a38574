"""What acts on evals: the tick, the evaluator of this machine, the records."""
