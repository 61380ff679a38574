"""What somebody may have meant by a name that does not exist. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

NEAREST_MAX = 3
LIKENESS_MIN = 0.6  # difflib's ratio: 1.0 is the same text, and 0.6 its own idea of close
KNOWN_MAX = 100_000  # names that are compared; 100 000 take about a second


def nearest(given: str, known: Iterable[str]) -> tuple[str, ...]:
    """Return at most `NEAREST_MAX` names of `known` that are most like `given`, the likest first.

    `given` itself is none of them: a name that stands there may still mean nothing, as a folder without
    records does.
    """
    others = [name for name in known if name != given]
    return tuple(get_close_matches(given, others, n=NEAREST_MAX, cutoff=LIKENESS_MIN))


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Return "did you mean a, b or c? ", with a space to go on after; empty where nothing is like it.

    `did_you_mean("gpt-stroy", ["gpt-story", "other"])` is "did you mean gpt-story? ".
    """
    names = nearest(given, known)
    if not names:
        return ""
    *others, last = names
    listed = f"{', '.join(others)} or {last}" if others else last
    return f"did you mean {listed}? "
