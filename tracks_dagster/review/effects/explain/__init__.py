"""The explanation of an attempt and its run: read once, printed as text, JSON or a report."""
