"""The ranks of one pod, and what the pod reports through the store."""
