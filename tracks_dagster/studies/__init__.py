"""Search under a budget: which configs are tried, who gets more steps, and what a study has come to."""
