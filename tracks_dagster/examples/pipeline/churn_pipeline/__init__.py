"""A team's own Dagster project: customers come in, a model is trained, all are scored."""
