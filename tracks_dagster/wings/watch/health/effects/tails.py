"""Reads the ends of journals again and again, of each only what is new.

One journal a run: rank 0's has what all ranks measured. A segment is named by its first byte's offset
and grows until it is full, so the next one's name is known: a look costs two reads of the store and no
list. At the first look it begins at most SEGMENTS_FIRST_MAX segments before the end, and reads
the first one too, for the attempt's first steps.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime

from tracks_dagster.stores.journals import (
    DeviceLine,
    EvaluatedLine,
    RanksLine,
    StepLine,
    journal_prefix,
    line_time,
    parse_line,
    parse_lines,
    read_segment,
    segment_offsets,
)
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json, parse_time
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.wings.watch.health.resources import BASE_LAST
from tracks_dagster.wings.watch.health.tail import NO_TAIL, Evaluated, Gang, Step, Tail, Use

SEGMENTS_FIRST_MAX = 8  # of 256 KiB: about 5 000 steps
SEGMENTS_MAX = 64  # of one look; the next one continues
READ_S_MIN = 1.0  # between two reads of one journal; in between the tail is as it was
RELIST_S = 120.0  # a segment that was never shipped leaves a gap, which only a list shows
JOURNALS_MAX = 1024  # kept by one process; the one used longest ago goes first
STEPS_MAX = 128
GANGS_MAX = 16
EVALUATED_MAX = 256
LOSSES_MAX = 1024  # points; beyond, every second one of the older half goes
USE_S_MAX = 720.0
USE_EVERY_S = 10.0


class Tails:
    """Keeps what was read. Safe for several threads: of one journal one reads at a time."""

    def __init__(
        self, store: ObjectStore, *, seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._seconds = seconds
        self._lock = threading.Lock()  # of the table; nothing is read under it
        self._journals: dict[str, _Journal] = {}

    def read(self, state: RunState) -> Tail:
        """Return the tail of the open attempt's journal; NO_TAIL where none is placed."""
        attempt = state.open_attempt
        if attempt is None or attempt.placed is None:
            return NO_TAIL
        launch_id = attempt.placed.launch_id
        prefix = journal_prefix(state.ref(attempt), launch_id, 0)
        with self._lock:
            journal = self._journals.pop(prefix, None)
            if journal is None:
                kept = _Kept(attempt.attempt_id, first_step=attempt.resumed_step)
                journal = _Journal(self._store, prefix, kept, self._seconds)
            self._journals[prefix] = journal
            if len(self._journals) > JOURNALS_MAX:
                del self._journals[next(iter(self._journals))]
        return journal.read()


class _Journal:
    """One journal, and how far it has been read."""

    def __init__(
        self, store: ObjectStore, prefix: str, kept: _Kept, seconds: Callable[[], float]
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._kept = kept
        self._seconds = seconds
        self._lock = threading.Lock()
        self._start: int | None = None  # of the segment that is read next; None: never looked
        self._size = 0  # of it, that was read
        self._read_s = self._listed_s = self._grown_s = float("-inf")

    def read(self) -> Tail:
        with self._lock:
            now_s = self._seconds()
            if now_s - self._read_s >= READ_S_MIN:
                self._follow(now_s)
                self._read_s = self._seconds()
            return self._kept.tail

    def _follow(self, now_s: float) -> None:
        if self._start is None:
            self._begin(now_s)
        data = self._get(self._start or 0)
        for _ in range(SEGMENTS_MAX):
            if data is not None and len(data) > self._size:
                self._kept.take(parse_lines(data[self._size :]))
                self._size, self._grown_s = len(data), now_s
            data = self._next(now_s)
            if data is None:
                return

    def _begin(self, now_s: float) -> None:
        """Find the newest segments, and read the first one for the first steps."""
        offsets = self._offsets(now_s)
        newest = offsets[-SEGMENTS_FIRST_MAX:]
        self._start = newest[0] if newest else 0
        self._grown_s = now_s
        if offsets and offsets[0] not in newest:
            self._kept.begin(parse_lines(self._get(offsets[0]) or b""))

    def _next(self, now_s: float) -> bytes | None:
        """Go to the segment after this one and return it; after a long silence to any later one."""
        start = self._start or 0
        found = self._get(start + self._size) if self._size else None
        if found is not None:
            self._start, self._size = start + self._size, 0
            return found
        if now_s - max(self._grown_s, self._listed_s) < RELIST_S:
            return None
        later = next((each for each in self._offsets(now_s) if each > start), None)
        if later is None:
            return None
        self._start, self._size = later, 0
        return self._get(later)

    def _offsets(self, now_s: float) -> list[int]:
        self._listed_s = now_s
        return segment_offsets(self._store, self._prefix)

    def _get(self, offset: int) -> bytes | None:
        return read_segment(self._store, self._prefix, offset)


class _Kept:
    """What is kept of the lines of one journal, bounded, however long it is."""

    def __init__(self, attempt_id: int, *, first_step: int) -> None:
        self._attempt_id = attempt_id
        self._early_last = first_step + BASE_LAST
        self._early: dict[int, Step] = {}
        self._steps: deque[Step] = deque(maxlen=STEPS_MAX)
        self._losses: list[tuple[int, float]] = []
        self._gangs: deque[Gang] = deque(maxlen=GANGS_MAX)
        self._use: deque[Use] = deque()
        self._evaluated: dict[int, Evaluated] = {}
        self._last_line_at: datetime | None = None
        self.tail = Tail(attempt_id=attempt_id)

    def begin(self, lines: Iterable[Mapping[str, Json]]) -> None:
        """Take in the first steps only, and evaluations."""
        for line in lines:
            match _read(line):
                case Step() as step:
                    self._take_early(step)
                case Evaluated() as evaluated:
                    self._evaluated[evaluated.step] = evaluated
                case _:
                    pass

    def take(self, lines: Iterable[Mapping[str, Json]]) -> None:
        """Take in the lines that follow."""
        for line in lines:
            self._last_line_at = line_time(line) or self._last_line_at
            match _read(line):
                case Step() as step:
                    self._take_step(step)
                case RanksLine() as ranks:
                    self._gangs.append(_gang(ranks))
                    self._take_use(parse_time(ranks.at), ranks.util)
                case DeviceLine() as device if not self._gangs or len(self._gangs[-1].step_s) < 2:
                    self._take_use(parse_time(device.at), (device.util_percent,))
                case Evaluated() as evaluated:
                    self._evaluated.pop(evaluated.step, None)
                    self._evaluated[evaluated.step] = evaluated
                case _:
                    pass
        while len(self._evaluated) > EVALUATED_MAX:
            del self._evaluated[next(iter(self._evaluated))]
        self.tail = Tail(
            attempt_id=self._attempt_id,
            steps=tuple(self._steps),
            early=tuple(self._early.values()),
            losses=tuple(self._losses),
            gangs=tuple(self._gangs),
            use=tuple(self._use),
            evaluated=tuple(self._evaluated.values()),
            last_line_at=self._last_line_at,
        )

    def _take_early(self, step: Step) -> None:
        if step.step <= self._early_last:
            self._early[step.step] = step

    def _take_step(self, step: Step) -> None:
        while self._steps and self._steps[-1].step >= step.step:  # a step twice: the later line
            self._steps.pop()
        self._steps.append(step)
        self._take_early(step)
        if step.loss is None:
            return
        while self._losses and self._losses[-1][0] >= step.step:
            self._losses.pop()
        self._losses.append((step.step, step.loss))
        if len(self._losses) > LOSSES_MAX:
            half = LOSSES_MAX // 2
            self._losses[:half] = self._losses[:half:2]

    def _take_use(self, at: datetime, util: tuple[float | None, ...]) -> None:
        """Take in a sample; those within USE_EVERY_S are one, with the greatest of each rank."""
        percent = tuple(None if each is None else int(each) for each in util)
        if not any(each is not None for each in percent):
            return
        newest = self._use[-1] if self._use else None
        if newest is not None and 0 <= (at - newest.first_at).total_seconds() < USE_EVERY_S:
            both = _greatest(newest.percent, percent)
            self._use[-1] = Use(first_at=newest.first_at, last_at=at, percent=both)
            return
        self._use.append(Use(first_at=at, last_at=at, percent=percent))
        while (at - self._use[0].last_at).total_seconds() > USE_S_MAX:
            self._use.popleft()


def _read(line: Mapping[str, Json]) -> Step | Evaluated | RanksLine | DeviceLine | None:
    match parse_line(line):
        case StepLine() as found:
            return Step(
                step=found.step,
                at=parse_time(found.at),
                loss=found.loss,
                step_s=found.step_s,
                data_s=found.data_s,
                own_s=found.own_s,
                grad_norm=found.grad_norm,
            )
        case EvaluatedLine() as found:
            return Evaluated(step=found.step, metrics=found.metrics)
        case None:
            return _without_loss(line)
        case found:
            return found


def _without_loss(line: Mapping[str, Json]) -> Step | None:
    """Return a step that ended without a loss, of which a line has its times only."""
    at, step, step_s = line_time(line), line.get("step"), line.get("step_s")
    if line.get("kind") != "step" or "loss" in line or at is None:
        return None
    if type(step) is not int or not isinstance(step_s, int | float):
        return None
    return Step(step=step, at=at, loss=None, step_s=float(step_s), data_s=0.0)


def _gang(line: RanksLine) -> Gang:
    return Gang(
        step=line.step, over=line.over, step_s=line.step_s, own_s=line.own_s, data_s=line.data_s
    )


def _greatest(a: tuple[int | None, ...], b: tuple[int | None, ...]) -> tuple[int | None, ...]:
    return tuple(_pairs(a, b))


def _pairs(a: tuple[int | None, ...], b: tuple[int | None, ...]) -> Iterator[int | None]:
    for rank in range(max(len(a), len(b))):
        known = [each[rank] for each in (a, b) if rank < len(each) and each[rank] is not None]
        yield max(known) if known else None  # type: ignore[type-var]
