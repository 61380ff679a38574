"""The ranks of one pod, and what the pod says through the store."""
