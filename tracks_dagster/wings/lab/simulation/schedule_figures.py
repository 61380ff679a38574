"""What a played queue comes to: waits, devices in use, moves and missed objectives. Pure.

A quantile is the nearest rank: of 20 waits the 95 % one is the 19th, a wait that somebody really had.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

from tracks_dagster.scheduling.policy import Order, SchedulingPolicy, WorkloadClass
from tracks_dagster.track.records import Json
from tracks_dagster.wings.lab.simulation.served import Played, Served

ALL = "all"
YOURS = "yours"
MEANINGS = (
    "median, 95 %: how long half, and 95 of 100, waited for devices at most",
    "used: device time with steps and saves, from first submission to last end",
    "idle: device time that was free while something waited",
    "frag.: device time that was free while nothing that waited fitted into it",
    "moved: runs that made room; lost: steps times ranks that they had to do again",
    "missed: submissions that met an objective of their class too late, or never",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One policy of a comparison. is_yours: it is this home's, or of the file that was given."""

    name: str
    policy: SchedulingPolicy
    is_yours: bool = False


def choices(policy: SchedulingPolicy) -> list[Choice]:
    """Return the textbook's policies, each with the classes of `policy`, and `policy` as it is.

    Each differs from the one before it in one thing; fair share is by team where priority is by class
    alone.
    """
    fifo = replace(policy, order=Order.FIFO, backfill=False, preemption=False)
    backfill = replace(fifo, backfill=True)
    found = [
        Choice(name="FIFO", policy=fifo),
        Choice(name="backfill", policy=backfill),
        Choice(name="fair share", policy=replace(backfill, order=Order.FAIR)),
        Choice(name="priority", policy=replace(backfill, order=Order.PRIORITY)),
        Choice(name="preemption", policy=replace(backfill, order=Order.PRIORITY, preemption=True)),
    ]
    same = [each.name for each in found if each.policy == policy]
    if same:
        return [replace(each, is_yours=each.name == same[0]) for each in found]
    return [*found, Choice(name=YOURS, policy=policy, is_yours=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Seconds of several. All 0 where there are none."""

    count: int
    median_s: float
    p95_s: float
    max_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassFigures:
    """What one class of work met, or all of it.

    missed_queue, missed_completion, missed_recovery: submissions that met an objective of their class
    too late, or never; missed: any of them. not_run: those that never ended.
    """

    name: str
    submissions: int
    wait: Spread
    completion: Spread
    recovery: Spread
    missed: int
    missed_queue: int
    missed_completion: int
    missed_recovery: int
    not_run: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """How near recurrence came to the time that work really took, of those that it predicted.

    median_error, p90_error: |predicted - real| / real. short: the share predicted too short.
    """

    predicted: int
    submissions: int
    median_error: float
    p90_error: float
    short: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One policy's play. Shares are of all device time, from the first submission to the last end.

    default_class: of submissions that name none. working: steps and saves; starting: held without
    work. waited_free: free while something waited; fragmented: of that, while nothing that waited
    fitted. lost_steps: of the moves, steps times ranks.
    """

    policy: str
    is_yours: bool
    default_class: str
    classes: tuple[ClassFigures, ...]
    working: float
    starting: float
    waited_free: float
    fragmented: float
    moves: int
    lost_steps: int
    idle_held_s: float
    length_s: float
    decisions: int
    why_not: tuple[str, ...]
    prediction: Prediction | None

    @property
    def all(self) -> ClassFigures:
        """All classes together."""
        return self.classes[0]


def figures(choice: Choice, played: Played) -> Figures:
    """Return what the play comes to, against the objectives of the policy's classes."""
    by_class: defaultdict[str, list[Served]] = defaultdict(list)
    for each in played.served:
        by_class[each.submission.workload_class or choice.policy.default_class].append(each)
    ordered = sorted(by_class, key=lambda name: (-choice.policy.class_of(name).priority, name))
    groups = {ALL: played.served, **{name: by_class[name] for name in ordered}}
    capacity_s = played.capacity_s or 1.0
    leased_s, worked_s = _device_time(played.served)
    return Figures(
        policy=choice.name,
        is_yours=choice.is_yours,
        default_class=choice.policy.default_class,
        classes=tuple(_class(name, served, choice.policy) for name, served in groups.items()),
        working=worked_s / capacity_s,
        starting=(leased_s - worked_s) / capacity_s,
        waited_free=played.waited_free_s / capacity_s,
        fragmented=played.fragmented_s / capacity_s,
        moves=sum(stay.is_moved for each in played.served for stay in each.stays),
        lost_steps=_lost_steps(played),
        idle_held_s=played.idle_held_s,
        length_s=played.ended_s - played.began_s,
        decisions=played.decisions,
        why_not=tuple(
            f"{each.submission.name}: {each.why_not}" for each in played.served if each.why_not
        ),
        prediction=prediction(played.served),
    )


def prediction(served: Sequence[Served]) -> Prediction | None:
    """Return how far recurrence was off; None where it predicted nothing."""
    pairs = [
        (each.expected_s, each.submission.work_s)
        for each in served
        if each.expected_s is not None and each.submission.estimate_s is None
    ]
    if not pairs:
        return None
    errors = sorted(abs(expected - real) / real for expected, real in pairs)
    return Prediction(
        predicted=len(pairs),
        submissions=len(served),
        median_error=quantile(errors, 0.5),
        p90_error=quantile(errors, 0.9),
        short=sum(expected < real for expected, real in pairs) / len(pairs),
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the nearest rank: the smallest value that `share` of all do not exceed; 0 of none."""
    if not ordered:
        return 0.0
    # less one in a million million, because 0.95 · 20 is a little more than 19
    return ordered[max(0, math.ceil(share * len(ordered) * (1 - 1e-12)) - 1)]


def figures_json(each: Figures) -> dict[str, Json]:
    """Return the figures as JSON."""
    found: dict[str, Json] = asdict(each)
    found["why_not"] = list(each.why_not)
    found["classes"] = [asdict(row) for row in each.classes]
    return found


def _class(name: str, served: Sequence[Served], policy: SchedulingPolicy) -> ClassFigures:
    missed = [_missed(each, policy.class_of(each.submission.workload_class)) for each in served]
    return ClassFigures(
        name=name,
        submissions=len(served),
        wait=_spread(each.wait_s for each in served if each.wait_s is not None),
        completion=_spread(each.completion_s for each in served if each.completion_s is not None),
        recovery=_spread(seconds for each in served for seconds in each.recoveries_s),
        missed=sum(any(each) for each in missed),
        missed_queue=sum(each[0] for each in missed),
        missed_completion=sum(each[1] for each in missed),
        missed_recovery=sum(each[2] for each in missed),
        not_run=sum(each.why_not is not None for each in served),
    )


def _missed(served: Served, objectives: WorkloadClass) -> tuple[bool, bool, bool]:
    """Return whether it met each objective too late: queue, completion, recovery."""
    slowest_s = max(served.recoveries_s, default=0.0)
    return (
        _is_late(served.wait_s, objectives.queue_s),
        _is_late(served.completion_s, objectives.completion_s),
        _is_late(slowest_s, objectives.recovery_s),
    )


def _is_late(seconds: float | None, objective_s: float | None) -> bool:
    return objective_s is not None and (seconds is None or seconds > objective_s)


def _spread(seconds: Iterable[float]) -> Spread:
    ordered = sorted(seconds)
    return Spread(
        count=len(ordered),
        median_s=quantile(ordered, 0.5),
        p95_s=quantile(ordered, 0.95),
        max_s=ordered[-1] if ordered else 0.0,
    )


def _device_time(served: Sequence[Served]) -> tuple[float, float]:
    """Return device seconds held, and of these with work."""
    leased_s = worked_s = 0.0
    for each in served:
        for stay in each.stays:
            leased_s += each.submission.weight * (stay.freed_s - stay.began_s)
            worked_s += each.submission.weight * (stay.worked_s - stay.works_s)
    return leased_s, worked_s


def _lost_steps(played: Played) -> int:
    return round(
        sum(
            stay.lost_s / played.overheads.step_s * each.submission.devices
            for each in played.served
            for stay in each.stays
        )
    )
