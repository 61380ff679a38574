"""Commands that decide about a run."""
