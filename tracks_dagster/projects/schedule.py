"""When a project is trained again by itself: its schedule, and what each tick of it does. Pure.

The ticks come from Dagster (`tracks_dagster.defs.sensors.retraining`); what a tick looks at is read by
`attempts.effects.retraining`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from tracks_dagster.track.bodies import SnapshotRef
from tracks_dagster.track.states.lifecycle import RunLifecycle

UTC = "UTC"
ID_CHARACTERS = 12  # of a snapshot's id, in a run's id and in words
_DAYS_OF_MONTH = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_WEEKDAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_PART = re.compile(r"(?:\*|(?P<first>\w+)(?:-(?P<last>\w+))?)(?:/(?P<step>[0-9]{1,2}))?")
_FINISHED = (RunLifecycle.SUCCEEDED, RunLifecycle.CANCELLED, RunLifecycle.REFUSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """When a project's runs are declared without a person.

    cron: five fields, in `timezone`; None for none. on_new_snapshot: once for each new snapshot of its
    dataset. only_if_snapshot_differs: a tick of the cron declares nothing while the newest usable
    snapshot is one that the schedule declared a run with.
    """

    cron: str | None = None
    timezone: str = UTC
    on_new_snapshot: bool = False
    only_if_snapshot_differs: bool = False

    @property
    def words(self) -> str:
        """When it declares a run, in words."""
        found = []
        if self.cron is not None:
            only = ", if there is a newer snapshot since" if self.only_if_snapshot_differs else ""
            found.append(f"at {self.cron} ({self.timezone}){only}")
        if self.on_new_snapshot:
            found.append("on each new snapshot")
        return " and ".join(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRun:
    """The newest run that a project's schedule declared; state: a `RunLifecycle`."""

    run_id: str
    state: str
    snapshot_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrain:
    """The run that a tick declares; the same tick names the same run."""

    run_id: str
    snapshot_id: str | None
    intent: str


def longest_gap(cron: str) -> timedelta:
    """Return a time that no two ticks of a valid cron lie further apart than, but for 29 February.

    Coarse: what limits a field to some values is taken to limit it to one.
    """
    _minute, hour, day, month, weekday = cron.split()
    if month != "*":
        return timedelta(days=366)
    if day != "*":
        return timedelta(days=62)  # the 31st of January and of March
    if weekday != "*":
        return timedelta(days=7)
    return timedelta(days=1) if hour != "*" else timedelta(hours=1)


def decide_tick(
    name: str,
    schedule: Schedule,
    *,
    at: datetime,
    newest: SnapshotRef | None,
    last: LastRun | None,
    is_declared: bool,
) -> Retrain | str:
    """Return the run of project `name` that the cron's tick of `at` declares, or why it is skipped.

    newest: the usable snapshot of its dataset; None of a project without one. is_declared: whether the
    run of this snapshot exists.
    """
    if (busy := _busy(last)) is not None:
        return busy
    if newest is not None and schedule.only_if_snapshot_differs:
        return _once(name, newest, last, is_declared)
    data = "" if newest is None else f", on snapshot {_describe(newest)}"
    return Retrain(
        run_id=f"{name}-{at:%Y%m%d-%H%M}",
        snapshot_id=None if newest is None else newest.snapshot_id,
        intent=f"Retraining of {name} by its schedule, at {at:%Y-%m-%d %H:%M} UTC{data}.",
    )


def decide_snapshot(
    name: str, *, newest: SnapshotRef, seen: str, last: LastRun | None, is_declared: bool
) -> Retrain | str:
    """Return the run of project `name` that a new snapshot declares, or why it is skipped.

    seen: the newest one when the switch was first on; it is not new. is_declared: as in `decide_tick`.
    """
    if newest.snapshot_id == seen:
        return f"skipped: {_describe(newest)} is not a new snapshot"
    return _busy(last) or _once(name, newest, last, is_declared)


def _once(name: str, newest: SnapshotRef, last: LastRun | None, is_declared: bool) -> Retrain | str:
    """Return the run of this snapshot unless there is one.

    A cron and a sensor that see it at the same time name the same run.
    """
    run_id = run_of_snapshot(name, newest)
    if last is not None and last.snapshot_id == newest.snapshot_id:
        what = f"{last.run_id} ({last.state})"
    elif is_declared:
        what = run_id
    else:
        return Retrain(
            run_id=run_id,
            snapshot_id=newest.snapshot_id,
            intent=f"Retraining of {name} on the new snapshot {_describe(newest)}.",
        )
    return (
        f"skipped: the snapshot did not change: {_describe(newest)}, the newest usable one, is that "
        f"of {what}"
    )


def run_of_snapshot(name: str, snapshot: SnapshotRef) -> str:
    """Return the id of the run that a new snapshot declares."""
    return f"{name}-{_short(snapshot)}"


def _busy(last: LastRun | None) -> str | None:
    if last is None or last.state in _FINISHED:
        return None
    return f"skipped: {last.run_id}, the schedule's last run, is not finished ({last.state})"


def _short(snapshot: SnapshotRef) -> str:
    return snapshot.snapshot_id[:ID_CHARACTERS]


def _describe(snapshot: SnapshotRef) -> str:
    return f"{_short(snapshot)} of {snapshot.dataset}"


# --- cron -----------------------------------------------------------------------------------------

_FIELDS: tuple[tuple[str, int, int, Mapping[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of month", 1, 31, {}),
    ("month", 1, 12, {name: number for number, name in enumerate(_MONTHS, start=1)}),
    ("day of week", 0, 7, {name: number for number, name in enumerate(_WEEKDAYS)}),
)


def check_cron(text: str) -> str:
    """Return a cron of five fields, in one form; raises ValueError naming what is wrong with it.

    Valid: numbers, names of months and days, `*`, ranges, steps and lists. A day that no month has is
    refused: it never comes.
    """
    words = text.lower().split()
    if len(words) != len(_FIELDS):
        raise ValueError(
            f"{text!r} is not a cron; write five fields in quotes (minute, hour, day of month, month, "
            'day of week), for example "0 3 * * 1" for Mondays at 3.'
        )
    values = [_values(text, word, *field) for word, field in zip(words, _FIELDS, strict=True)]
    _, _, days, months, _ = values
    if words[4] == "*" and min(days) > max(_DAYS_OF_MONTH[month - 1] for month in months):
        raise ValueError(f"{text!r} never comes: no such month has a day {min(days)}.")
    return " ".join(words)


def _values(
    text: str, word: str, what: str, low: int, high: int, names: Mapping[str, int]
) -> set[int]:
    """Return the values that a field names."""
    found: set[int] = set()
    for part in word.split(","):
        match = _PART.fullmatch(part)
        values = None if match is None else _range(match, low, high, names)
        if not values:
            raise ValueError(
                f"{text!r} is not a cron: {part!r} is not a valid {what}; write {low} to {high}, *, "
                "a range a-b, a step */n or a list of these."
            )
        found |= set(values)
    return found


def _range(match: re.Match[str], low: int, high: int, names: Mapping[str, int]) -> range | None:
    """Return the values of `*`, `a` or `a-b`, with a step or not; None where there are none."""
    first, last = low, high
    if match["first"] is not None:
        first = _number(match["first"], names)
        last = first if match["last"] is None else _number(match["last"], names)
    step = int(match["step"] or 1)
    is_one = match["first"] is not None and match["last"] is None
    is_valid = step > 0 and low <= first <= last <= high and not (is_one and match["step"])
    return range(first, last + 1, step) if is_valid else None


def _number(text: str, names: Mapping[str, int]) -> int:
    return names.get(text, int(text) if re.fullmatch(r"[0-9]{1,2}", text) else -1)
