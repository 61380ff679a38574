"""Words of a journal's lines that its writer, its readers and the curves drawn of it share.

docs/signals.md says what every line holds.
"""

from __future__ import annotations

# The kinds of lines that curves are made of.
STEPS, EVALUATED, RANKS, DEVICE = "step", "evaluated", "ranks", "device"
BY_RANK = (RANKS, DEVICE)

LOSS = "loss"
OWN = "metrics."  # before the name of a script's metric, among the columns of a kind of lines
METRICS_MAX = 1000  # of a run's script, and of its evaluations: those with the most points
