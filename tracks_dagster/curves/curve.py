"""What a curve is: a metric's points by attempt, which of them were kept, and what happened on the way.

A run's curve is stitched of its attempts by their account of steps (`track.states.accounting`): of each
attempt the points that the run still rests on, and those that were lost. Pure; who reads the journals
and makes the points fewer is `curves.effects`.

Names. A metric of the script has the name that the script gave it. What is measured beside it gives
way: a measured `step_s` is `tracks/step_s` in a run whose script reports a `step_s` of its own, and an
evaluation's `loss` is `evaluated/loss`, because `loss` is that of the steps. `lr` and `grad_norm` are
the script's where it reports them. By rank: `ranks/step_s`, `device/power_w`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import NamedTuple

from tracks_dagster.track.bodies import ConfigChange
from tracks_dagster.track.journal_lines import (
    BY_RANK,
    DEVICE,
    EVALUATED,
    LOSS,
    METRICS_MAX,
    OWN,
    STEPS,
)
from tracks_dagster.track.records import Json, format_time
from tracks_dagster.track.states.accounting import StepAccount
from tracks_dagster.track.states.run_state import RunState

CHANGES_MAX = 4  # of a remedy, in words
VALUE_CHARACTERS_MAX = 24  # of a changed value

STEP, TOKENS, SAMPLES, HOURS, WALL = "step", "tokens", "samples", "hours", "wall"
AXES = (STEP, TOKENS, SAMPLES, HOURS, WALL)

TRAINING, SPEED = "training", "speed"  # groups; the others have their kind's name
GROUP_WORDS = {  # of a curve, beside its name: a loss of the training is none of an eval
    TRAINING: "training",
    EVALUATED: "evaluated in training",
    SPEED: "speed",
    DEVICE: "rank 0",
}
SAMPLES_PER_S, TOKENS_PER_S = "samples_per_s", "tokens_per_s"
MEASURED_BY_US = "tracks"  # before the name of what is measured, where the script has one like it
REPORTED = ("lr", "grad_norm")  # measured where the script does not report them
MEASURED = ("step_s", "data_s", "own_s", "exchange_s", SAMPLES_PER_S, TOKENS_PER_S)
UNITS = {  # by the end of a column's name; the first that fits
    "samples_per_s": "samples/s",
    "tokens_per_s": "tokens/s",
    "_s": "s",
    "_bytes": "bytes",
    "util": "%",
    "_percent": "%",
    "_w": "W",
    "_c": "°C",
}

ZERO_FROM = 0.2  # an axis that begins before this share of its end begins at 0

END, REMEDY, COMMIT = "end", "remedy", "commit"  # what may have happened on the axis


class Point(NamedTuple):
    """One value. x: on the axis that was asked for; value: may not be finite; at: seconds since
    1970 by the rank's clock, which may jump, nan where it is unknown."""

    step: int
    x: float
    value: float
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One attempt's share of a curve, in the order of its steps. rank: None of the whole gang's.

    count: how many points it has in the journal, before they were made fewer.
    """

    attempt_id: int
    rank: int | None
    is_kept: bool
    points: tuple[Point, ...]
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """Where a curve comes from. name: as people write it; kind, column: of the journal's lines."""

    name: str
    group: str
    kind: str
    column: str
    unit: str = ""

    @property
    def is_by_rank(self) -> bool:
        """Whether each rank has a curve of its own."""
        return self.kind in BY_RANK


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One metric of a run. series: oldest attempt first, what was kept before what was lost."""

    metric: Metric
    series: tuple[Series, ...]

    @property
    def name(self) -> str:
        """The metric's name."""
        return self.metric.name

    @property
    def group(self) -> str:
        """training, evaluated, speed, ranks or device."""
        return self.metric.group

    @property
    def unit(self) -> str:
        """The values' unit; empty where it is the script's own."""
        return self.metric.unit

    @property
    def is_by_rank(self) -> bool:
        """Whether each rank has a curve of its own."""
        return self.metric.is_by_rank

    @property
    def points_read(self) -> int:
        """How many points the journals have of it."""
        return sum(series.count for series in self.series)

    @property
    def kept_count(self) -> int:
        """How many of them were kept."""
        return sum(series.count for series in self.kept)

    @property
    def kept(self) -> list[Series]:
        """The series that the run still rests on."""
        return [series for series in self.series if series.is_kept]

    @property
    def last(self) -> Point | None:
        """The newest finite point that was kept; None where there is none."""
        for series in reversed(self.kept):
            for point in reversed(series.points):
                if math.isfinite(point.value):
                    return point
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What happened on the axis. kind: END, REMEDY or COMMIT; text: in words; label: in few."""

    kind: str
    step: int
    x: float
    attempt_id: int
    text: str
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """A run's curves. head_seq: of the newest record that kept and lost rest on.

    x_label: what the axis counts; `by` tokens are samples where the script reports no tokens.
    names_left_out: metrics beyond METRICS_MAX, at least so many. lost: what cannot be read of an
    imported run, a sentence each.
    """

    run_id: str
    head_seq: int
    by: str
    x_label: str
    curves: tuple[Curve, ...]
    marks: tuple[Mark, ...]
    names_left_out: int = 0
    lost: tuple[str, ...] = ()

    @property
    def x_range(self) -> tuple[float, float] | None:
        """The axis that all pictures of these curves share; None without a point."""
        places = [p.x for c in self.curves for s in c.series for p in s.points]
        return axis_range(places) if places else None

    def find(self, name: str) -> Curve | None:
        """Return the curve of that name, or None."""
        return next((curve for curve in self.curves if curve.name == name), None)


def axis_range(places: Iterable[float]) -> tuple[float, float]:
    """Return where an axis with these places begins and ends: at 0 where it begins near there."""
    known = list(places)
    low, high = min(known), max(known)
    return (0.0 if 0 <= low <= ZERO_FROM * high else low), high


def metrics_of(columns: Mapping[str, Mapping[str, int]]) -> tuple[tuple[Metric, ...], int]:
    """Return the metrics of a run, the loss first, and how many were left out.

    columns: of each kind of line the columns, each with the number of its points.
    """
    steps = columns.get(STEPS, {})
    own, left_out = _most(steps)
    evaluated, also_left_out = _most(columns.get(EVALUATED, {}))
    used = {LOSS} if LOSS in steps else set()
    found = [Metric(name=name, group=TRAINING, kind=STEPS, column=name) for name in used]
    for name in sorted(own):
        shown = _free(name, "metrics", used)
        found.append(Metric(name=shown, group=TRAINING, kind=STEPS, column=OWN + name))
    for name in sorted(evaluated):
        shown = _free(name, EVALUATED, used)
        found.append(Metric(name=shown, group=EVALUATED, kind=EVALUATED, column=OWN + name))
    for name in REPORTED:
        if name in steps and name not in own:
            shown = _free(name, MEASURED_BY_US, used)
            found.append(Metric(name=shown, group=TRAINING, kind=STEPS, column=name))
    for name in MEASURED:
        if name in steps:
            found.append(_measured(name, SPEED, STEPS, name, used))
    for kind in BY_RANK:
        for name in sorted(columns.get(kind, {})):
            found.append(_measured(f"{kind}/{name}", kind, kind, name, used))
    return tuple(found), left_out + also_left_out


def _measured(name: str, group: str, kind: str, column: str, used: set[str]) -> Metric:
    shown = _free(name, MEASURED_BY_US, used)
    return Metric(name=shown, group=group, kind=kind, column=column, unit=unit_of(column))


def unit_of(column: str) -> str:
    """Return the unit of what is measured in that column; empty where it has none."""
    return next((unit for suffix, unit in UNITS.items() if column.endswith(suffix)), "")


def _most(columns: Mapping[str, int]) -> tuple[list[str], int]:
    """Return the METRICS_MAX names of the script with the most points, and how many others it has."""
    own = {name.removeprefix(OWN): n for name, n in columns.items() if name.startswith(OWN)}
    most = sorted(own, key=lambda name: (-own[name], name))[:METRICS_MAX]
    return most, len(own) - len(most)


def _free(name: str, prefix: str, used: set[str]) -> str:
    """Return the name, behind `prefix/` as often as it takes to be nobody else's, and take it."""
    while name in used:
        name = f"{prefix}/{name}"
    used.add(name)
    return name


def marks_of(state: RunState, accounts: Sequence[StepAccount]) -> list[Mark]:
    """Return the ends of attempts, the remedies and the commits, each at its step, in their order."""
    marks = [*_of_attempts(state, accounts), *_commits(state)]
    return sorted(marks, key=lambda mark: (mark.step, mark.attempt_id))


def _of_attempts(state: RunState, accounts: Sequence[StepAccount]) -> Iterator[Mark]:
    for attempt, account in zip(state.attempts, accounts, strict=True):
        name = f"a{attempt.attempt_id:02d}"
        if attempt.opened.remediation:
            changes = _changes(attempt.opened.remediation)
            yield _mark(
                REMEDY, attempt.resumed_step, attempt.attempt_id, f"{name}: {changes}", changes
            )
        if attempt.reason is not None:
            words = f"{name} ended after step {account.last}: {attempt.reason}"
            label = f"{name} {attempt.reason}"
            yield _mark(END, account.last, attempt.attempt_id, words, label)


def _commits(state: RunState) -> Iterator[Mark]:
    for checkpoint in state.checkpoints:
        ref = checkpoint.ref
        words = f"checkpoint of step {ref.step}, attempt {ref.attempt_id}"
        yield _mark(COMMIT, ref.step, ref.attempt_id, words)


def _mark(kind: str, step: int, attempt_id: int, text: str, label: str = "") -> Mark:
    return Mark(kind=kind, step=step, x=float(step), attempt_id=attempt_id, text=text, label=label)


def _changes(changes: Sequence[ConfigChange]) -> str:
    shown = [f"{c.key} {_short(c.before)} → {_short(c.after)}" for c in changes[:CHANGES_MAX]]
    more = f" and {len(changes) - CHANGES_MAX} more" if len(changes) > CHANGES_MAX else ""
    return f"{', '.join(shown)}{more}"


def _short(value: Json) -> str:
    text = str(value)
    return text if len(text) <= VALUE_CHARACTERS_MAX else f"{text[: VALUE_CHARACTERS_MAX - 1]}…"


# --- averages -------------------------------------------------------------------------------------


def averaged(curve: Curve, steps: int) -> Curve:
    """Return the averages of what was kept, over the ends of attempts."""
    found: list[Series] = []
    for rank in dict.fromkeys(series.rank for series in curve.kept):
        of_rank = [series for series in curve.kept if series.rank == rank]
        averages = iter(smoothed(points_of(of_rank), steps))
        for series in of_rank:
            points = tuple(islice(averages, len(series.points)))
            found.append(replace(series, points=points))
    return replace(curve, series=tuple(found))


def points_of(series: Iterable[Series]) -> list[Point]:
    """Return the points of all these."""
    return [point for each in series for point in each.points]


def smoothed(points: Sequence[Point], steps: int) -> list[Point]:
    """Return the points with the average of the values around each, those farther away counting less.

    A value `steps` steps away counts 1/e of the point's own. Points may lie unevenly, as those that
    were made fewer do. What is not a finite number stays, and counts for nothing.
    """
    finite = [point for point in points if math.isfinite(point.value)]
    before = _sums(finite, steps)
    after = reversed(list(_sums(finite[::-1], steps)))
    averages = (
        (left + right - point.value) / (weight_left + weight_right - 1.0)
        for point, (left, weight_left), (right, weight_right) in zip(
            finite, before, after, strict=True
        )
    )
    return [
        point._replace(value=average)
        if math.isfinite(point.value) and math.isfinite(average := next(averages))
        else point
        for point in points
    ]


def _sums(points: Iterable[Point], steps: int) -> Iterator[tuple[float, float]]:
    """Yield for each point the sum of the values up to it, and of what they count."""
    total = weight = 0.0
    step = None
    for point in points:
        kept = 0.0 if step is None else math.exp(-abs(point.step - step) / steps)
        total, weight, step = total * kept + point.value, weight * kept + 1.0, point.step
        yield total, weight


# --- for a program ---


def curves_json(curves: Curves) -> dict[str, Json]:
    """Return curves for a program."""
    return {
        "run_id": curves.run_id,
        "head_seq": curves.head_seq,
        "by": curves.by,
        "x_label": curves.x_label,
        "metrics": [
            {
                "name": curve.name,
                "group": curve.group,
                "unit": curve.unit,
                "points_read": curve.points_read,
                "series": [
                    {
                        "attempt_id": series.attempt_id,
                        "rank": series.rank,
                        "is_kept": series.is_kept,
                        "points": [
                            [point.step, point.x, number_json(point.value), time_json(point.at)]
                            for point in series.points
                        ],
                    }
                    for series in curve.series
                ],
            }
            for curve in curves.curves
        ],
        "point": ["step", "x", "value", "at"],
        "marks": [
            {
                "kind": mark.kind,
                "step": mark.step,
                "x": mark.x,
                "attempt_id": mark.attempt_id,
                "text": mark.text,
            }
            for mark in curves.marks
        ],
        "names_left_out": curves.names_left_out,
        "lost": list(curves.lost),
    }


def number_json(value: float) -> Json:
    """Return a value for JSON, which has no nan: as text, as the journals have it."""
    return value if math.isfinite(value) else str(value)


def time_json(at: float) -> str | None:
    """Return a time for JSON; None where it is not known."""
    return format_time(datetime.fromtimestamp(at, UTC)) if math.isfinite(at) else None
