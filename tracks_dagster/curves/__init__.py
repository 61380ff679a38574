"""Curves of metrics over all attempts of a run: what is kept, what was lost, read from journals."""
