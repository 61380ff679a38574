"""Which causes a line names only as one of several: they are no evidence for any of them.

"the worker failed, or ran out of memory" was written by a program that could not tell the two apart.
"""

from __future__ import annotations

import re

from tracks_dagster.reasons.words.cause import Cause
from tracks_dagster.reasons.words.guesses import is_led_by_or, other_alternative
from tracks_dagster.track.reasons import ReasonFamily, TerminationReason

# Causes that lie outside the program. What software reports of its settings, code or data is not
# meant: there both parts of "missing or invalid" tell the same cause.
_OUTSIDE = frozenset(
    {
        ReasonFamily.AS_MEANT,
        ReasonFamily.CAPACITY,
        ReasonFamily.HARDWARE,
        ReasonFamily.COORDINATION,
        ReasonFamily.MEMORY,
    }
)
# Ends that others make: no row of words tells of them.
_BY_OTHERS = re.compile(
    r"\b(pre-?empted|evicted|reclaimed|cancell?ed|drained|killed)\b", re.IGNORECASE
)


def is_one_of_several(row: Cause, line: str, rows: tuple[Cause, ...]) -> bool:
    """Whether a line that tells `row` names its cause only beside another one, of `rows` or not."""
    found = row.words.search(line)
    if found is None or not _lies_outside(row.reason):
        return False
    if is_led_by_or(line, found.start()):
        return True
    other = other_alternative(line, found.end())
    if not other or row.words.search(other) is not None:
        return False
    if _BY_OTHERS.search(other) is not None:
        return True
    return any(each.reason is not row.reason and each.is_told_by(other) for each in rows)


def _lies_outside(reason: TerminationReason) -> bool:
    return reason.family in _OUTSIDE or reason is TerminationReason.NATIVE_CRASH
