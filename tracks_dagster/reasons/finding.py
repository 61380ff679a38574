"""What one rule of the classifier finds, and the weights that rules have."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from tracks_dagster.track.reasons import TerminationReason

LINES_MAX = 8
LINE_CHARACTERS_MAX = 400


class Weight(IntEnum):
    """How much a kind of signal weighs, the smallest number most: design section 6."""

    AS_MEANT = 0  # every rank says that it is done
    INTENT = 1  # a person or a policy asked for it
    CONTROL_PLANE = 2  # a scheduler's condition or words
    HARDWARE = 3  # the kernel's lines, a boot id that changed
    CONTAINER = 4  # container and cgroup status
    LAST_WORD = 5  # what the trainer itself says, by type
    EXCEPTION = 6  # the earliest initiating exception over all ranks
    EXIT = 7  # exit code and signal
    VANISHED = 8  # gone without a word


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One rule's reading. lines: what it rests on; root_message: for the fingerprint.

    row: the name of the row in a rule's table that was met, where the rule has a table.
    """

    reason: TerminationReason
    confidence: float
    lines: tuple[str, ...]
    root_message: str
    row: str | None = None
