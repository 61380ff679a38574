"""The logs of all ranks of an attempt as one, by time. Pure.

Ranks print what they like, so a line's time is the one that its text begins with, else that of the line
before it: a traceback stays with the message above it. A clock that goes back counts as one that does
not move.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from heapq import merge
from urllib.parse import urlencode

from tracks_dagster.track.names import attempt_key
from tracks_dagster.track.text.units import counted

ALL, WARNINGS, ERRORS = "all", "warnings", "errors"
LEVELS = (ALL, WARNINGS, ERRORS)
TRACEBACK = "Traceback (most recent call last)"
TIME_WITHIN = 40  # characters from a line's beginning
LINE_CHARACTERS_MAX = 2000  # that are shown of one

_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,6}))?\d*\s?(Z|[+-]\d\d:?\d\d)?"
)
_ERROR = re.compile(
    r"\b(?:ERROR|CRITICAL|FATAL)\b|^[A-Za-z_][\w.]*(?:Error|Exception)\b|" + re.escape(TRACEBACK)
)
_WARNING = re.compile(r"\bWARN(?:ING)?\b|Warning:")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line. number: among those of its rank, from 1; at: seconds since 1970, None where neither it
    nor a line before it has a time; level: one of LEVELS."""

    rank: int
    number: int
    at: float | None
    text: str
    level: str = ALL

    @property
    def begins_traceback(self) -> bool:
        """Whether a traceback of Python begins here."""
        return TRACEBACK in self.text


def in_order(texts: Mapping[int, str]) -> list[LogLine]:
    """Return the lines of all ranks by time; those before the first time of their rank come first."""
    lines = (list(_lines(rank, text)) for rank, text in sorted(texts.items()))
    return list(merge(*lines, key=lambda line: float("-inf") if line.at is None else line.at))


def _lines(rank: int, text: str) -> Iterator[LogLine]:
    newest: float | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        at = time_of(line)
        if at is not None:
            newest = at if newest is None else max(newest, at)
        shown = line[:LINE_CHARACTERS_MAX]
        yield LogLine(rank=rank, number=number, at=newest, text=shown, level=_level(shown))


def time_of(line: str) -> float | None:
    """Return the time that a line begins with, in seconds since 1970; one without a zone is UTC."""
    found = _TIME.search(line[:TIME_WITHIN])
    if found is None:
        return None
    day, clock, fraction, zone = found.groups()
    text = f"{day}T{clock}.{(fraction or '0'):<06}{'+00:00' if zone in (None, 'Z') else zone}"
    try:
        return datetime.fromisoformat(text).astimezone(UTC).timestamp()
    except (ValueError, OverflowError):
        return None


def _level(text: str) -> str:
    if _ERROR.search(text):
        return ERRORS
    return WARNINGS if _WARNING.search(text) else ALL


def chosen(
    lines: Iterable[LogLine], *, rank: int | None = None, level: str = ALL, text: str = ""
) -> list[LogLine]:
    """Return the lines of that rank, of at least that level, that hold the text in any case."""
    levels = LEVELS[LEVELS.index(level) :]
    wanted = text.casefold()
    return [
        line
        for line in lines
        if rank in (None, line.rank)
        and line.level in levels
        and (not wanted or wanted in line.text.casefold())
    ]


def first_traceback(lines: Sequence[LogLine]) -> int | None:
    """Return where the first traceback begins, None where there is none."""
    return next((at for at, line in enumerate(lines) if line.begins_traceback), None)


def order_words(lines: Sequence[LogLine]) -> str:
    """Return how the lines of several ranks are ordered, in a sentence; "" of one rank."""
    ranks = {line.rank for line in lines}
    if len(ranks) < 2:
        return ""
    timed = {line.rank for line in lines if line.at is not None}
    if not timed:
        return "No rank prints times: one rank comes after the other."
    without = ", ".join(map(str, sorted(ranks - timed)))
    rest = f" Without times, so first: rank {without}." if without else ""
    return f"Ordered by the times that the lines begin with.{rest}"


# --- the page -----------------------------------------------------------------------------------------


LINES_MAX = 1000  # on a page
BEFORE_TRACEBACK = 10  # lines that are shown above it
FIRST_ID = "first"  # anchor of the first traceback


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAsked:
    """What a log page is asked for. rank: None for all; first: index of the first line among those
    chosen, None for the end."""

    attempt_id: int
    rank: int | None = None
    level: str = ALL
    text: str = ""
    first: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPage:
    """All that log.html shows. older, newer, traceback: the `first` that leads there, None for no link;
    mark: index among `lines` of the first traceback, None where it is not one of them."""

    title: str
    run_id: str
    asked: LogAsked
    attempts: tuple[int, ...]
    ranks: tuple[int, ...]
    lines: tuple[LogLine, ...]
    words: str
    older: int | None
    newer: int | None
    traceback: int | None
    mark: int | None
    query: str  # of the download

    def at(self, first: int | None) -> str:
        """Return the address of the same page from another line on; None: its end."""
        asked = self.asked
        query = {
            "attempt": str(asked.attempt_id),
            "rank": "" if asked.rank is None else str(asked.rank),
            "level": "" if asked.level == ALL else asked.level,
            "text": asked.text,
            "first": "" if first is None else str(first),
        }
        return f"?{urlencode({name: value for name, value in query.items() if value})}"


def log_page(
    run_id: str, texts: Mapping[int, str], asked: LogAsked, *, attempts: Sequence[int], is_cut: bool
) -> LogPage:
    """Return the page of an attempt's logs. is_cut: only the end of each was read."""
    every = in_order(texts)
    found = chosen(every, rank=asked.rank, level=asked.level, text=asked.text)
    end = max(0, len(found) - LINES_MAX)
    first = end if asked.first is None else min(asked.first, max(0, len(found) - 1))
    lines = tuple(found[first : first + LINES_MAX])
    at = first_traceback(found)
    parts = [
        f"{counted(len(found), 'line')} of {len(every)}",
        f"lines {first + 1} to {first + len(lines)} are shown" if len(lines) < len(found) else "",
    ]
    sentences = [f"{'; '.join(filter(None, parts))}.", order_words(found)]
    if is_cut:
        sentences.append("Of each rank only the end is here; the download has all that is kept.")
    return LogPage(
        title=f"Log of {attempt_key(run_id, asked.attempt_id)}",
        run_id=run_id,
        asked=asked,
        attempts=tuple(attempts),
        ranks=tuple(sorted(texts)),
        lines=lines,
        words=" ".join(filter(None, sentences)),
        older=max(0, first - LINES_MAX) if first else None,
        newer=first + LINES_MAX if first + LINES_MAX < len(found) else None,
        traceback=None if at is None else max(0, at - BEFORE_TRACEBACK),
        mark=None if at is None or not first <= at < first + len(lines) else at - first,
        query=urlencode(
            {"attempt": asked.attempt_id, **({} if asked.rank is None else {"rank": asked.rank})}
        ),
    )
