"""A sensor's tick: its parts, how long each takes, whose turn it is, and what came of it.

Dagster ends a tick after 60 s and forgets what it was about to say. So each part of a tick begins work
for a bounded time, and the next tick goes on after the run that was the last one begun. Nearly all of
a run's time is spent waiting for the store, so a few runs at once take little longer than one.
"""

from __future__ import annotations

import json
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.track.errors import TracksError
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.records import format_time, parse_time
from tracks_dagster.track.unforeseen import problem_of

T = TypeVar("T")

PART_S_MAX = 10.0  # a tick has at most three such parts, and two of upkeep
UPKEEP_S_MAX = 5.0  # which leaves its slow runs 20 of its 60 s
AT_ONCE_MAX = 8  # runs of one part; five sensors tick at once in one process
LINES_MAX = 20  # runs that a skip reason names; a page of Dagster's UI shows it
LINE_CHARACTERS_MAX = 300

Seconds = Callable[[], float]  # a clock that only goes forward


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSlice:
    """The time of one part of a tick. after: the name at which the last tick was cut, if it was.

    seconds_max: no further name is begun after so long. at_once: names that are worked on together.
    """

    after: str | None = None
    seconds_max: float = PART_S_MAX
    at_once: int = 1
    seconds: Seconds = time.monotonic


ONE_BY_ONE = TimeSlice()
SEVERAL_AT_ONCE = TimeSlice(at_once=AT_ONCE_MAX)


def slice_until(tracks: Tracks, until: datetime) -> TimeSlice:
    """Return the time up to `until` by the tracks' clock; none where that is over."""
    left_s = (until - tracks.now()).total_seconds()
    return TimeSlice(seconds_max=left_s, seconds=lambda: tracks.now().timestamp())


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(Generic[T]):
    """What came of a part of a tick. done: a value for each name that had something to show.

    decided, waiting, problems: in words, the name first. cut_at: the name after which the next tick
    goes on, where this one ran out of time. is_done: False has the part begun again at the next tick,
    however long it would rest.
    """

    done: tuple[T, ...] = ()
    decided: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    cut_at: str | None = None
    is_done: bool = True


def take_turns(
    names: Sequence[str], work: Callable[[str], Tick[T]], time_slice: TimeSlice = ONE_BY_ONE
) -> Tick[T]:
    """Work on each name in turn, and on at least one where there is time at all, until it is used up.

    They come in the order given as long as time suffices. After a cut they come by name, from the one
    after `after` on and round to it: whatever was decided, ended or declared meanwhile, each has had
    its turn before any has a second one. Whatever one raises is a problem of its own.
    """

    def looked(name: str) -> Tick[T]:
        try:
            return work(name)
        except Exception as error:  # noqa: BLE001 - one name's, whatever it is
            return Tick(problems=(f"{name}: {problem_of(error)}",))

    turns = _Turns(names, time_slice)
    ticks = turns.work(looked)
    return Tick(
        done=tuple(each for tick in ticks for each in tick.done),
        decided=tuple(line for tick in ticks for line in tick.decided),
        waiting=tuple(line for tick in ticks for line in tick.waiting),
        problems=tuple(line for tick in ticks for line in tick.problems),
        cut_at=turns.cut_at,
    )


def take_batch(
    names: Sequence[str], work: Callable[[str], Tick[T]], *, after: str | None, count_max: int
) -> Tick[T]:
    """Work on the next `count_max` names after `after`, by name, for UPKEEP_S_MAX; else `take_turns`.

    So what cannot be worked on fills no batch for ever. cut_at: the last one begun, where more follow.
    """
    ahead = sorted(name for name in names if after is None or name > after)
    found = take_turns(ahead[:count_max], work, TimeSlice(seconds_max=UPKEEP_S_MAX))
    if found.cut_at is None and len(ahead) > count_max:
        found = replace(found, cut_at=ahead[count_max - 1])
    return replace(found, is_done=found.cut_at is None)


class _Turns:
    """The names of one part of a tick, in turn. cut_at: the last one begun if time ran out."""

    def __init__(self, names: Sequence[str], time_slice: TimeSlice) -> None:
        after = time_slice.after
        self._names = list(names) if after is None else _from(names, after)
        self._slice = time_slice
        self.cut_at: str | None = None

    def __iter__(self) -> Iterator[str]:
        seconds = self._slice.seconds
        began_s = seconds()
        for index, name in enumerate(self._names):
            spent_s = seconds() - began_s if index else 0.0
            if spent_s >= self._slice.seconds_max:
                self.cut_at = self._names[index - 1] if index else self._slice.after
                return
            yield name

    def work(self, look: Callable[[str], T]) -> list[T]:
        """Return what came of each, in their order."""
        if self._slice.at_once == 1:
            return [look(name) for name in self]
        free = threading.Semaphore(self._slice.at_once)

        def looked(name: str) -> T:
            try:
                return look(name)
            finally:
                free.release()

        begun: list[Future[T]] = []
        with ThreadPoolExecutor(max_workers=self._slice.at_once) as threads:
            turns = iter(self)
            while True:
                free.acquire()  # the time is asked for when there is a thread for the next one
                name = next(turns, None)
                if name is None:
                    break
                begun.append(threads.submit(looked, name))
        return [each.result() for each in begun]


def _from(names: Sequence[str], after: str) -> list[str]:
    by_name = sorted(names)
    begin = bisect_right(by_name, after)
    return [*by_name[begin:], *by_name[:begin]]


def skip_reason(tick: Tick[Any], *, idle: str) -> str:
    """Return what a tick did, could not do and waits for, run by run, in bounded length; else `idle`.

    A tick that could not look (the cluster is away, the store does not answer) is never called idle.
    """
    unseen = (f"could not look: {problem}" for problem in tick.problems)
    found = (*tick.decided, *unseen, *tick.waiting)
    lines = [line[:LINE_CHARACTERS_MAX] for line in found]
    more = len(lines) - LINES_MAX
    shown = [*lines[:LINES_MAX], *([f"… and {more} more"] if more > 0 else [])]
    if tick.cut_at is not None:
        shown.append(f"the next tick goes on after {tick.cut_at}")
    return "; ".join(shown) or idle


@dataclass(frozen=True, slots=True, kw_only=True)
class TickPart:
    """A part of a sensor's tick. work: given where the last tick was cut, does it.

    every: how long it rests once it is done; None: it is due at every tick.
    """

    name: str
    work: Callable[[str | None], Tick[Any]]
    every: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """How far a part has come. done_at: when it was last done; after: where it was cut."""

    done_at: str | None = None
    after: str | None = None


def run_parts(
    parts: Iterable[TickPart], cursor: str | None, now: datetime
) -> tuple[dict[str, Tick[Any]], str]:
    """Do the parts that are due, in order; return what came of each, and the next tick's cursor.

    The parts that rest come to nothing. What nobody foresaw in one is its problem, and the others are
    done. Raises the TracksErrors of a part: then the store or the ledger is away, for all of them.
    """
    marks = read_cursor(cursor)
    ticks: dict[str, Tick[Any]] = {}
    for part in parts:
        mark = marks.get(part.name, Mark())
        if not _is_due(part, mark, now):
            ticks[part.name] = Tick()
            continue
        tick = ticks[part.name] = _done(part, mark.after)
        done_at = mark.done_at if part.every is None or not tick.is_done else format_time(now)
        marks[part.name] = Mark(done_at=done_at, after=tick.cut_at)
    return ticks, format_cursor(marks)


def _done(part: TickPart, after: str | None) -> Tick[Any]:
    try:
        return part.work(after)
    except TracksError:
        raise
    except Exception as error:  # noqa: BLE001 - one part's
        return Tick(problems=(f"{part.name}: {problem_of(error)}",), cut_at=after, is_done=False)


def _is_due(part: TickPart, mark: Mark, now: datetime) -> bool:
    if part.every is None or mark.done_at is None:
        return True
    return now - parse_time(mark.done_at) >= part.every


def format_cursor(marks: Mapping[str, Mark]) -> str:
    """Return the text that Dagster keeps from one tick to the next; `read_cursor` reads it."""
    return json.dumps({name: asdict(mark) for name, mark in marks.items()})


def read_cursor(text: str | None) -> dict[str, Mark]:
    """Return the marks by part; a text that cannot be read has none, and all is done once more."""
    try:
        marks = {name: Mark(**mark) for name, mark in parse_json(text or "{}").items()}
        for mark in marks.values():
            if mark.done_at is not None:
                parse_time(mark.done_at)
            if not isinstance(mark.after, str | None):
                raise TypeError(f"after is {mark.after!r}, no name")
    except (ValueError, TypeError, AttributeError):
        return {}
    return marks
