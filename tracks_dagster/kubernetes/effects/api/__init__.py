"""The connection to a cluster's API server."""
