"""Gangs on a Kubernetes cluster: an Indexed Job for each attempt, and what is seen of its pods."""
