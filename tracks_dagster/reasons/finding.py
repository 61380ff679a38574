"""What one rule of the classifier finds, and the weights that rules have."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from tracks_dagster.track.reasons import TerminationReason

# --- confidence -----------------------------------------------------------------------------------
#
# How sure a verdict is: a short scale, so that 0.85 means the same wherever it is written.
#
# A confidence is the share of such verdicts that we expect the diagnosis to bear out. It is a
# property of the kind of signal and never of one message. People read it as: from LIKELY on act on
# it; LEANING names the best single guess, and somebody should look; below that the reason is
# `unknown`, and the number says only how much was seen at all. No budget depends on it.

CERTAIN = 1.0  # recorded intent, or every rank says that it has all its steps
STATED = 0.95  # a control plane states it about this very attempt
MEASURED = 0.9  # a counter of the kernel or the device, or the trainer's typed last word
NAMED = 0.85  # words that name the cause itself
LIKELY = 0.7  # words that are mostly heard for that cause, now and then for another
LEANING = 0.5  # heard for several causes; this one most often
SEEN = 0.3  # `unknown`, with an exit code or signal
SILENT = 0.2  # `unknown`, and hardly anything was left
NOTHING = 0.0  # `unknown`, and no evidence at all


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
