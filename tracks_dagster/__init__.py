"""Training runs that survive preemption and failure, as a Dagster code location."""
