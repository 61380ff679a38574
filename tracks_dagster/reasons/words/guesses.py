"""What a line only supposes: a list of what may have happened names no cause.

A program that does not know why something failed says what it may have been: "this may be due to …",
"failed, or ran out of memory". A verdict rests on what has happened; so a line ends for the rules where
it begins to suppose, and words that stand as one of several alternatives are not read.
"""

from __future__ import annotations

import re

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
