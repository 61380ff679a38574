"""What the record tells of an attempt and of its run: read once, told as text, JSON or a report."""
