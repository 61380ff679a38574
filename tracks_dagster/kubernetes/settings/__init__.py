"""A cluster's settings, and what the cluster lacks for them. Pure."""
