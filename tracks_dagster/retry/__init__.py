"""What follows on a failure: policy, limits, remedies, rollback; the health of nodes and pools."""
