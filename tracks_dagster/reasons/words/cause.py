"""One row of the tables of causes: words that tell a termination reason."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

from tracks_dagster.reasons.confidence import LEANING, LIKELY, NAMED
from tracks_dagster.reasons.words.literals import required_words
from tracks_dagster.track.reasons import TerminationReason


class Tier(IntEnum):
    """How near to the root words are; the nearer counts, whatever came first in time.

    ROOT: they name a cause. GENERAL: they name a kind of failure, which a ROOT line explains better.
    SYMPTOM: they are heard as well where something else failed first, on this rank or on another.
    """

    ROOT = 0
    GENERAL = 1
    SYMPTOM = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # hashed with every line, by identity
class Cause:
    """Words that tell `reason`.

    name: stands in the verdict; words: looked for in every line; unless: a line that has it as well
    tells something else; beside: has to stand somewhere in the same text. required: words of which
    every line that is met has one, to look for first.
    """

    name: str
    reason: TerminationReason
    words: re.Pattern[str]
    tier: Tier
    confidence: float
    unless: re.Pattern[str] | None = None
    beside: re.Pattern[str] | None = None
    required: frozenset[str] | None = None

    def is_told_by(self, line: str) -> bool:
        """Whether a line has the words and nothing against them."""
        lowered = line.lower()
        if self.required is not None and not any(word in lowered for word in self.required):
            return False
        if self.words.search(line) is None:
            return False
        return self.unless is None or self.unless.search(line) is None


_CONFIDENCES = {Tier.ROOT: NAMED, Tier.GENERAL: LIKELY, Tier.SYMPTOM: LEANING}


def cause(
    reason: TerminationReason,
    name: str,
    *words: str,
    tier: Tier = Tier.ROOT,
    confidence: float | None = None,
    unless: str | None = None,
    beside: str | None = None,
) -> Cause:
    """Return a row; `words` are regular expressions without regard to case, any of which tells it."""
    return Cause(
        name=name,
        reason=reason,
        words=_pattern("|".join(words)),
        tier=tier,
        confidence=_CONFIDENCES[tier] if confidence is None else confidence,
        unless=None if unless is None else _pattern(unless),
        beside=None if beside is None else _pattern(beside),
        required=required_words("|".join(words)),
    )


def _pattern(words: str) -> re.Pattern[str]:
    return re.compile(words, re.IGNORECASE)
