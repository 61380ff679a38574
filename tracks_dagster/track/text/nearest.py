"""Names that somebody may have meant by one that does not exist. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from heapq import nsmallest
from itertools import islice

NEAREST_MAX = 3
LIKENESS_MIN = 0.6  # difflib's ratio: 1.0 is the same text, and 0.6 its own idea of close
LIKENESS_OF_TWO_MIN = 0.5  # of two letters one may be wrong: "vn" for "vm"
RUNS_NAMED_MAX = 5  # as many as an archive mostly holds
KNOWN_MAX = 100_000  # names that are compared; 100 000 take about a second


def nearest(given: str, known: Iterable[str]) -> tuple[str, ...]:
    """Return at most `NEAREST_MAX` names of `known`: those that begin with `given`, then those that are
    most like it, the likest first.

    `given` itself is left out: a name in the store may still mean nothing, as a folder without records
    does.
    """
    others = [name for name in known if name != given]
    begun = nsmallest(NEAREST_MAX, (name for name in others if given and name.startswith(given)))
    if len(begun) == NEAREST_MAX:
        return tuple(begun)
    cutoff = LIKENESS_MIN if len(given) > 2 else LIKENESS_OF_TWO_MIN
    like = get_close_matches(given, others, n=NEAREST_MAX, cutoff=cutoff)
    return tuple(dict.fromkeys((*begun, *like)))[:NEAREST_MAX]


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Return "did you mean a, b or c? ", with a space at the end; empty where no name is close.

    `did_you_mean("gpt-stroy", ["gpt-story", "other"])` is "did you mean gpt-story? ".
    """
    names = nearest(given, known)
    if not names:
        return ""
    *others, last = names
    listed = f"{', '.join(others)} or {last}" if others else last
    return f"did you mean {listed}? "


def no_run(given: str, known: Iterable[str]) -> str:
    """Return that there is no run of that name, the nearest, and where there are few, all of them."""
    others = [name for name in islice(known, KNOWN_MAX) if name != given]
    is_few = 0 < len(others) <= RUNS_NAMED_MAX
    listed = f"there are: {', '.join(others)}." if is_few else "`tracks status` lists them."
    return f"There is no training run {given!r}; {instead(given, others, listed)}"


def instead(given: str, known: Iterable[str], listed: str) -> str:
    """Return the nearest names and `listed`, a clause that begins a sentence of its own after them.

    "did you mean gpt-story? There are: …", or where nothing is near "there are: …".
    """
    hint = did_you_mean(given, known)
    return f"{hint}{listed[0].upper()}{listed[1:]}" if hint else listed


def unknown(what: str, given: str, valid: Sequence[str]) -> str:
    """Say that `given` is not such a thing, what it may have meant, and what there is."""
    close = get_close_matches(given, valid, n=1)
    listed = (
        f"{'did you mean ' + close[0] + '? There' if close else 'there'} are: {', '.join(valid)}."
    )
    article = "an" if what[0] in "aeiou" else "a"
    return f"{given!r} is not {article} {what}; {listed}"
