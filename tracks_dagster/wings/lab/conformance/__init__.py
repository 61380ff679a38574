"""Whether a trainer resumes exactly: the trials of `tracks conform`, and what they show."""
