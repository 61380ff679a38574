"""A row of the tables of causes, how sure its words make a verdict, and what a rule finds."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from re import _parser  # type: ignore[attr-defined]  # the only parser of Python's own patterns
from typing import Any

from tracks_dagster.track.reasons import TerminationReason

# How sure a verdict is: a short scale, so that 0.85 means the same wherever it is written.
# A confidence is the share of such verdicts that we expect the diagnosis to bear out. It is a
# property of the kind of signal and never of one message. People read it as: from LIKELY on act on
# it; LEANING names the best single guess, and somebody should look; below that the reason is
# `unknown`, and the number says only how much was seen at all. No budget depends on it.

CERTAIN = 1.0  # recorded intent, or every rank says that it has all its steps
STATED = 0.95  # a control plane states it about this very attempt
MEASURED = 0.9  # a counter of the kernel or the device, or the trainer's typed last word
NAMED = 0.85  # words that name the cause itself
LIKELY = 0.7  # words that mostly come with that cause, now and then with another
LEANING = 0.5  # words of several causes; this one most often
SEEN = 0.3  # `unknown`, with an exit code or signal
SILENT = 0.2  # `unknown`, and hardly anything was left
NOTHING = 0.0  # `unknown`, and no evidence at all

WORD_CHARACTERS_MIN = 3  # shorter ones stand in most lines


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


class Tier(IntEnum):
    """How near to the root words are; the nearer counts, whatever came first in time.

    ROOT: they name a cause. GENERAL: they name a kind of failure, which a ROOT line explains better.
    SYMPTOM: they also appear where something else failed first, on this rank or on another.
    """

    ROOT = 0
    GENERAL = 1
    SYMPTOM = 2


class Words:
    """A regular expression without regard to case, compiled for the first line that is looked at.

    Every process of a run has the tables, and few of them look at a line. An error in `pattern` is a
    re.error of the first look. required: words of which every line that matches has one, to look for
    first; None where there are none.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern

    @cached_property
    def search(self) -> Callable[[str], re.Match[str] | None]:
        return re.compile(self.pattern, re.IGNORECASE).search

    @cached_property
    def required(self) -> frozenset[str] | None:
        return required_words(self.pattern)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # hashed with every line, by identity
class Cause:
    """Words that name `reason`.

    name: for the verdict; words: looked for in every line; unless: a line that has it as well means
    something else; beside: has to be somewhere in the same text.
    """

    name: str
    reason: TerminationReason
    words: Words
    tier: Tier
    confidence: float
    unless: Words | None = None
    beside: Words | None = None

    def matches(self, line: str) -> bool:
        """Whether a line has the words and nothing against them."""
        required = self.words.required
        if required is not None:
            lowered = line.lower()
            if not any(word in lowered for word in required):
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
    """Return a row; `words` are regular expressions without regard to case, any of which is enough."""
    return Cause(
        name=name,
        reason=reason,
        words=Words("|".join(words)),
        tier=tier,
        confidence=_CONFIDENCES[tier] if confidence is None else confidence,
        unless=None if unless is None else Words(unless),
        beside=None if beside is None else Words(beside),
    )


def required_words(pattern: str) -> frozenset[str] | None:
    """Return words in lower case of which every match has at least one; None when there are none.

    "a(bcd|efgh)?xyz|no route" → {"xyz", "no route"}
    """
    return _of(_parser.parse(pattern, re.IGNORECASE))


def _of(tree: Any) -> frozenset[str] | None:
    """Return the best set of words for a sequence: the one whose shortest word is longest."""
    best: frozenset[str] | None = None
    run = ""
    for operation, argument in [*tree, ("END", None)]:
        name = str(operation)
        if name == "LITERAL":
            run += chr(argument).lower()
            continue
        found = [frozenset({run})] if len(run) >= WORD_CHARACTERS_MIN else []
        run = ""
        inner = _inside(name, argument)
        if inner is not None:
            found.append(inner)
        for words in found:
            if best is None or min(map(len, words)) > min(map(len, best)):
                best = words
    return best


def _inside(name: str, argument: Any) -> frozenset[str] | None:
    """Return the words that a part of a sequence requires."""
    if name == "SUBPATTERN":
        return _of(argument[-1])
    if name == "BRANCH":
        each = [_of(branch) for branch in argument[1]]
        words = [found for found in each if found is not None]
        return frozenset().union(*words) if len(words) == len(each) else None
    if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT") and argument[0] > 0:
        return _of(argument[2])
    return None
