"""Send a run's kept steps to a tracker, from where the last export of it ended.

How far that was the tracker itself keeps, beside what it was sent: so exporting again changes nothing,
from whichever machine it is done, and a tracker that was emptied is filled again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from tracks_dagster.curves.effects.media import read_bytes, read_logged
from tracks_dagster.curves.effects.rows import Row, kept_rows
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.track.errors import ObjectLost, TrackerError
from tracks_dagster.track.media import Logged
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.text.units import STEPS_MAX, counted
from tracks_dagster.wings.watch.exports import (
    ExportedRun,
    Place,
    Rollback,
    Sent,
    after_rollback,
    describe_run,
    find_logged,
    find_rollback,
    left_out,
    without_last,
)

LEFT_OUT_MAX = 20  # that an export names

Seconds = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What an export brings. rows: the kept steps after `Sent.step`, in order.

    sent: how far the tracker had come, the rollback taken into account; rollback: tagged before the
    rows are added. logged: what a tracker that has come so far lacks of what was logged beside numbers;
    to be asked after the last row too. all_rows, all_logged: everything again, by step, for a tracker
    that is written again. leave_out: says of a thing that the tracker cannot have it, and why.
    """

    run: ExportedRun
    sent: Sent
    rows: Iterator[Row]
    all_rows: Callable[[], Iterator[Row]]
    logged: Callable[[Sent], Things]
    all_logged: Callable[[], Iterator[tuple[Logged, bytes]]]
    leave_out: Callable[[Logged, str], None]
    rollback: Rollback | None = None


class Target(Protocol):
    """One run in a tracker, while it is written to."""

    @property
    def sent(self) -> Sent:
        """How far it has come; NOTHING_SENT where the tracker does not know the run."""
        ...

    def write(self, news: News) -> None:
        """Add the rows and say what the run is now; raises TrackerError. Idempotent, may be killed."""
        ...


class Tracker(Protocol):
    """Something that shows curves of many runs."""

    @property
    def name(self) -> str:
        """Where it is, in words without secrets."""
        ...

    def open(self, run: ExportedRun) -> AbstractContextManager[Target]:
        """Return the run in it, for one writer at a time; raises TrackerError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What an export did. steps: rows that were sent; to_step: how far the tracker has come.

    logged: how many things were sent that were logged beside numbers; left_out: those that were not,
    each with the reason. is_whole: False where its time was over before everything was sent.
    """

    run_id: str
    tracker: str
    steps: int
    to_step: int
    rolled_back: str | None = None
    is_whole: bool = True
    logged: int = 0
    left_out: tuple[str, ...] = ()

    @property
    def is_news(self) -> bool:
        """Whether the tracker has something that it had not, or cannot have."""
        return bool(self.steps or self.logged or self.rolled_back or self.left_out)

    @property
    def words(self) -> str:
        """What was sent: "20 steps and 1 thing logged"."""
        steps = [counted(self.steps, "step")] if self.steps else []
        logged = [f"{counted(self.logged, 'thing')} logged"] if self.logged else []
        return " and ".join([*steps, *logged]) or "nothing new"

    @property
    def without(self) -> str:
        """What was not sent, in a line: "; not sent: x of step 4: …"; nothing where all was."""
        return "".join(f"; not sent: {each}" for each in self.left_out)


def export_run(
    tracks: Tracks,
    run: str | RunState,
    tracker: Tracker,
    *,
    cache: Path | None,
    seconds_max: float | None = None,
    seconds: Seconds = time.monotonic,
) -> Exported:
    """Send what the tracker lacks of a run; raises UnknownRun, TrackerError and StoreError.

    seconds_max: no further step or thing is begun after so long, but one of each.
    """
    state = tracks.run(run) if isinstance(run, str) else run
    described = describe_run(state)
    time_left = _TimeLeft(None if seconds_max is None else seconds() + seconds_max, seconds)

    def rows_after(step: int) -> Iterator[Row]:
        rows = kept_rows(tracks, state, cache=cache, after=step, committed_only=True).rows
        return without_last(rows) if state.open_attempt is not None else rows

    @lru_cache(maxsize=1)
    def all_logged() -> tuple[tuple[Place, Logged], ...]:
        found = read_logged(tracks.store, state)
        return tuple(zip(found.places, found.items, strict=True))

    given = dict[tuple[int, str], str]()  # by step and name: why it was not sent, "" where it was

    def leave_out(item: Logged, why: str) -> None:
        given[item.step, item.name] = left_out(item, why)

    def data_of(item: Logged) -> bytes | None:
        try:
            data = read_bytes(tracks.store, state.run_id, item)
        except ObjectLost:
            leave_out(item, "its bytes are gone from the store")
            return None
        given[item.step, item.name] = ""
        return data

    def logged(sent: Sent) -> Things:
        due, end = find_logged(all_logged(), sent)
        return Things(due, sent, end, data_of, lambda: bool(given) and time_left.is_over())

    def every_logged() -> Iterator[tuple[Logged, bytes]]:
        for _, item in all_logged():
            if (data := data_of(item)) is not None:
                yield item, data

    with tracker.open(described) as target:
        rollback = find_rollback(state, target.sent)
        sent = after_rollback(target.sent, rollback)
        counted = _Counted(rows_after(sent.step), time_left)
        news = News(
            run=described,
            sent=sent,
            rows=counted,
            all_rows=lambda: rows_after(0),
            logged=logged,
            all_logged=every_logged,
            leave_out=leave_out,
            rollback=rollback,
        )
        target.write(news)
    due, _ = find_logged(all_logged(), sent.with_rows(STEPS_MAX, 0))
    new = {key: given[key] for item, _ in due if (key := (item.step, item.name)) in given}
    return Exported(
        run_id=state.run_id,
        tracker=tracker.name,
        steps=counted.count,
        to_step=sent.step if counted.last is None else counted.last,
        rolled_back=rollback.words if rollback is not None else None,
        is_whole=not time_left.is_cut,
        logged=sum(not why for why in new.values()),
        left_out=_some([why for why in new.values() if why]),
    )


def _some(words: list[str]) -> tuple[str, ...]:
    more = len(words) - LEFT_OUT_MAX
    return (*words[:LEFT_OUT_MAX], *([f"and {more} more"] if more > 0 else []))


class _TimeLeft:
    """The time of an export. is_cut: whether it was over before everything was sent."""

    def __init__(self, until: float | None, seconds: Seconds) -> None:
        self._until, self._seconds = until, seconds
        self.is_cut = False

    def is_over(self) -> bool:
        """Whether what would be begun now is left to the next export."""
        self.is_cut = self.is_cut or (self._until is not None and self._seconds() >= self._until)
        return self.is_cut


class _Counted:
    """Rows, until the time is over. count, last: how many came, and the step of the newest."""

    def __init__(self, rows: Iterator[Row], time_left: _TimeLeft) -> None:
        self._rows, self._time_left = rows, time_left
        self.count = 0
        self.last: int | None = None

    def __iter__(self) -> Iterator[Row]:
        return self

    def __next__(self) -> Row:
        if self.count and self._time_left.is_over():
            raise StopIteration
        row = next(self._rows)
        self.count += 1
        self.last = row.step
        return row


class Things:
    """Things that were logged, with their bytes, until the time is over.

    sent: how far a tracker has come that has those that came so far; end: once it has all of them.
    """

    def __init__(
        self,
        due: Iterable[tuple[Logged, Sent]],
        sent: Sent,
        end: Sent,
        data_of: Callable[[Logged], bytes | None],
        is_over: Callable[[], bool],
    ) -> None:
        self._due, self._data_of, self._is_over = due, data_of, is_over
        self.sent, self.end = sent, end

    def __iter__(self) -> Iterator[tuple[Logged, bytes]]:
        for item, sent in self._due:
            if self._is_over():
                return
            data = self._data_of(item)
            self.sent = sent
            if data is not None:
                yield item, data
        self.sent = self.end


def check_key(stored: Mapping[str, Json], run: ExportedRun, place: Path) -> None:
    """Raise TrackerError where `place` holds another run of that name."""
    if stored.get("key") != run.key:
        raise TrackerError(
            f"{place} holds another run of the name {run.run_id}, which another home declared; nothing "
            "was added. Export to another folder."
        )


def progressed(sent: Sent, row: Row) -> Sent:
    """Return how far a tracker has come with this row."""
    return sent.with_rows(row.step, row.attempt_id)
