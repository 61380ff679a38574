"""What a line only supposes: lists of what may have happened, and causes named as one of several."""

from __future__ import annotations

import re

from tracks_dagster.reasons.words.cause import Cause
from tracks_dagster.track.reasons import ReasonFamily, TerminationReason

# --- guesses --------------------------------------------------------------------------------------
#
# What a line only supposes: a list of what may have happened names no cause.
#
# A program that does not know why something failed says what it may have been: "this may be due to …",
# "failed, or ran out of memory". A verdict rests on what has happened; so a line ends for the rules
# where it begins to suppose, and words that stand as one of several alternatives are not read.

# From here on a line no longer says what happened, only what it might mean, or what to try.
_GUESS = re.compile(
    r"(there are |some |other )*(potential|possible|common|likely) (root )?(causes?|reasons?)\b"
    r"|\b(this |it )?(may|might|could|can)( also)? be (due to|caused by|because|the result of|related)"
    r"|\b(may|might|could) have (been )?[a-z]"
    r"|\b(possibly|probably|perhaps|maybe|presumably|likely) (due to|because|caused by|out of|oom"
    r"|an? |the |it |ran |running |was |killed|preempted|evicted|related)"
    r"|\bit is possible that\b|\b(usually|often|typically) (means|caused by|due to|indicates|reflects)"
    r"|\bthis (can|may|could|might|usually|often) (happen|occur|mean)"
    r"|\b(e\.g\.|for example|for instance|such as) "
    r"|(^|: )\W{0,9}(if|when|in case) (you|your|the|this|it|there)\b"
    r"|\b(to (fix|avoid|resolve) this|consider|try) (to |setting|reducing|using|increasing|adding)",
    re.IGNORECASE,
)
# An "or" that leads to the words that follow, with no end of a clause between them.
_LED_BY_OR = re.compile(r"\b(or|and/or)\b[^.:;()'\"]{0,60}$", re.IGNORECASE)
_AND_THEN_OR = re.compile(r"^[^.:;()'\"]{0,60}?\bor\b ([^.:;()'\"]{0,60})", re.IGNORECASE)


def without_guesses(line: str) -> str:
    """Return the part of a line that tells what happened: a list of what it may mean is no cause."""
    match = _GUESS.search(line)
    return line if match is None else line[: match.start()]


def is_led_by_or(line: str, start: int) -> bool:
    """Whether the words that begin at `start` stand as an alternative to what is said before them.

    "the worker failed, or ran out of memory": the memory is only one of the two.
    """
    return _LED_BY_OR.search(line[:start]) is not None


def other_alternative(line: str, end: int) -> str:
    """Return what an "or" puts beside the words that end at `end`; "" when there is none.

    "ran out of memory or was preempted" → "was preempted"
    """
    match = _AND_THEN_OR.match(line[end:])
    return "" if match is None else match[1]


# --- alternatives ---------------------------------------------------------------------------------
#
# Which causes a line names only as one of several: they are no evidence for any of them.
#
# "the worker failed, or ran out of memory" was written by a program that could not tell the two apart.

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
    return any(each.reason is not row.reason and each.matches(other) for each in rows)


def _lies_outside(reason: TerminationReason) -> bool:
    return reason.family in _OUTSIDE or reason is TerminationReason.NATIVE_CRASH
