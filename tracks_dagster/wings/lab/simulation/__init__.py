"""A policy or a cadence, played over histories and traces. Pure."""
