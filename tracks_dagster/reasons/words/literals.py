"""The literal words without which a pattern cannot match: a quick look before the slow one.

Hundreds of patterns are looked for in every line of every rank; almost no line has any of their words.
"""

from __future__ import annotations

import re
from re import _parser  # type: ignore[attr-defined]  # the only parser of Python's own patterns
from typing import Any

WORD_CHARACTERS_MIN = 3  # shorter ones stand in most lines


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
