"""Splits a log that several ranks share into one for each, by what stands before their lines. Pure.

A launcher writes the output of all its ranks into one file and names the rank on each line. Whether a
rank went on after a line, and which one failed first, shows only in its own lines. What nobody's name
stands before is the launcher's: it keeps the number of the rank whose log the file is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tracks_dagster.reasons.evidence import RankEnd

LINES_MAX = 50_000  # of a shared log, its last ones
RANKS_MAX = 4096
HEAD_CHARACTERS = 160  # of a line in which its rank is looked for
_PLAIN_SHARE_MIN = 0.8  # of all lines that a form has to name which other texts have as well

# These name a rank and nothing else.
_NAMED = re.compile(
    r"\[(?:rank|default|local_rank)[\s:=_-]{0,2}(\d{1,5})\]:"  # torch, torchrun
    r"|(?:^|\s)\[\d{1,5},(\d{1,5})\]<std(?:out|err|diag)>:"  # mpirun --tag-output
    r"|(?:^|\s)\[(\d{1,5})\]<std(?:out|err)>:"  # horovodrun
)
# srun -l, a launcher's "3/8:": as any numbered list has them.
_NUMBERED = re.compile(r"^\s{0,8}(\d{1,5})(?:/\d{1,5})?:(?:\s|$)")
_TERMINAL = re.compile(r"\x1b\[[0-9;]*m")
_STEP = re.compile(r"\b(?:step|iter|iteration|epoch|batch)s?\b\W{0,3}\d|\d%\|", re.IGNORECASE)
# What torchrun names as the first that failed; its own lines name no rank.
_FIRST_FAILED = re.compile(
    r"Root Cause \(first observed failure\)[\s\S]{0,400}?\brank\s*:\s*(\d{1,5}) \(local_rank"
)


@dataclass(slots=True)
class _Lines:
    """One rank's lines. ends_at: the number, in the file, of its first line after its last step."""

    texts: list[str] = field(default_factory=list)
    ends_at: int | None = None


def by_rank(rank: RankEnd) -> tuple[RankEnd, ...]:
    """Return a rank for each that its log names, the one first whose last words begin first.

    The rank itself, alone, where its log names fewer than two, or where it left a last word: then the
    log is its own.
    """
    if rank.last_word is not None:
        return (rank,)
    lines = rank.log_tail.rsplit("\n", LINES_MAX)[-LINES_MAX:]
    numbers = _numbers(lines)
    if not 2 <= len({n for n in numbers if n is not None}) <= RANKS_MAX:
        return (rank,)
    found: dict[int | None, _Lines] = {}
    for place, (number, line) in enumerate(zip(numbers, lines, strict=True)):
        each = found.setdefault(number, _Lines())
        each.texts.append(line)
        if _STEP.search(line):
            each.ends_at = None
        elif each.ends_at is None and line.strip():
            each.ends_at = place
    order = sorted(found, key=lambda n: _after_all(found[n].ends_at, len(lines)))
    launcher = _first_failed(rank)
    return tuple(
        replace(
            rank,
            rank=launcher if number is None else number,
            oom_killed=rank.oom_killed and place == 0,
            log_tail="\n".join(found[number].texts),
        )
        for place, number in enumerate(order)
    )


def _numbers(lines: Sequence[str]) -> list[int | None]:
    """Return the rank that each line names; None for all where the lines are not ranks'."""
    heads = [_TERMINAL.sub("", line[:HEAD_CHARACTERS]) for line in lines]
    named = [_number(_NAMED.search(head)) for head in heads]
    if len({n for n in named if n is not None}) >= 2:
        return named
    numbered = [_number(_NUMBERED.match(head)) for head in heads]
    named_count = sum(n is not None for n in numbered)
    written = sum(bool(head.strip()) for head in heads)
    return numbered if named_count >= _PLAIN_SHARE_MIN * written else [None] * len(lines)


def _number(match: re.Match[str] | None) -> int | None:
    return None if match is None else int(next(n for n in match.groups() if n is not None))


def _after_all(ends_at: int | None, count: int) -> int:
    return count if ends_at is None else ends_at


def _first_failed(rank: RankEnd) -> int:
    match = _FIRST_FAILED.search(rank.log_tail)
    return rank.rank if match is None else int(match[1])
