"""Evals and promotions: which is due, how one is run and ends, and what an alias is given for."""
