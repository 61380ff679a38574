"""What acts on a study: its file, its declaration, the runs of its trials, samplers of a library."""
