"""Journals as columns of numbers: what curves are drawn of."""
