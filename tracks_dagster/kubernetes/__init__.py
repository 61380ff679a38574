"""Gangs on a Kubernetes cluster: an Indexed Job for each attempt."""
