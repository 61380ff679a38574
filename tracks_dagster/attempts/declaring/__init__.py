"""What a run's declaration consists of, and from where each of its fields comes."""
