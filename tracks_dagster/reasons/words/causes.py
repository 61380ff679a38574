"""The table of causes that ships: every row of words that tell a termination reason, in order.

Where two rows of a tier are told by one line, the row above counts: the particular stands before the
general. A row names what a family of software says when a cause is met, never one program's line.
"""

from __future__ import annotations

from tracks_dagster.reasons.words.cause import Cause
from tracks_dagster.reasons.words.crashes import CRASHES
from tracks_dagster.reasons.words.machines import MACHINES
from tracks_dagster.reasons.words.memory import MEMORY
from tracks_dagster.reasons.words.software import SOFTWARE

CAUSES: tuple[Cause, ...] = (*MEMORY, *MACHINES, *SOFTWARE, *CRASHES)
