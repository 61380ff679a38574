"""What of a user's project runs in the gang: its stored code, commands, evals and a first script."""
