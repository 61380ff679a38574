"""When a sensor of ours ticks: at once where it has something new to look at, seldom where nothing.

Pure. What is looked at is what the ledger says of runs that are not over, a row each. A sensor that is
not known here keeps the interval of its definition.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tracks_dagster.retry.next_sensor import sensor_of
from tracks_dagster.track import names
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.states.evals import HAS_ALL_STEPS

DATASET, NEWS, STUDY = "dataset", "news", "study"
OPEN_S = 5.0  # between two ticks of a sensor that has something to look at
# Between two looks at a run whose attempt has ended: a share of the time since then.
SOON_S, SOON_SHARE = 0.5, 0.25
# Of one that has nothing: in case the ledger is behind. The watcher's upkeep and sign of life go on.
IDLE_S = 60.0
IDLE_WATCH_S = 30.0
# Of the one that judges runs, while one goes on; else it never ticks. A fault is to be a message within
# a minute: the steps in which it shows, this, a few seconds to ship and to send, a daemon's restart.
HEALTH_S = 15.0
SEND_S = 30.0  # of who sends messages: one that failed is not tried sooner, and an end waits for it
CLOCK_S = 1.0  # by which two looks at one clock may differ


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Something that a sensor may have to look at.

    kind: `run`, of a run that continues: its name, how many attempts it has, and why the newest ended
    (None while it has not); `commits`, of such a run whose commits are evaluated: how many it has;
    `news`, of such a run with alerts, its newest one; `eval`, of one under way; `dataset`, of one with
    its newest record; `study`, of an open one: how many of its runs go on.
    """

    kind: str
    name: str
    number: int
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What each sensor has to look at, and since when it is that. seconds: of any one clock."""

    work: Mapping[str, frozenset[Work]]
    since_s: Mapping[str, float]

    def next(self, work: Sequence[Work], now_s: float) -> Pace:
        """Return the pace after a look that found `work`."""
        by_sensor = work_by_sensor(work)
        changed = {name for name, each in by_sensor.items() if self.work.get(name) != each}
        since_s = {name: now_s if name in changed else self.since_s[name] for name in by_sensor}
        return Pace(work=by_sensor, since_s=since_s)

    @property
    def is_idle(self) -> bool:
        """Whether the last look found no run and no eval that is open."""
        return bool(self.work) and all(
            each.kind == DATASET for work in self.work.values() for each in work
        )

    def changed_after(self, seconds: float) -> bool:
        """Whether a sensor has had something new to look at since then."""
        return any(self.work[name] and at > seconds for name, at in self.since_s.items())

    def is_due(self, sensor: str, *, ticked_s: float, now_s: float) -> bool | None:
        """Whether a sensor that ticked at `ticked_s` has to tick now; None: its own interval says."""
        work = self.work.get(sensor)
        if work is None:
            return None
        if work and self.since_s[sensor] > ticked_s and sensor != names.WATCH_HEALTH:
            return True
        if now_s < ticked_s - CLOCK_S:  # the clock was set back
            return True
        return now_s - ticked_s >= self._interval_s(sensor, now_s)

    def round_s(self, now_s: float) -> float:
        """How soon it has to be looked again which sensors are due, if nothing changes."""
        return min((self._interval_s(name, now_s) for name in self.work), default=OPEN_S)

    def _interval_s(self, sensor: str, now_s: float) -> float:
        work = self.work[sensor]
        if sensor == names.WATCH_HEALTH:  # nothing that it sees is a matter of seconds
            return HEALTH_S if work else math.inf
        if sensor == names.SEND_NOTIFICATIONS:
            return SEND_S
        if any(each.reason is not None for each in work):  # it may wait for a backoff
            return min(OPEN_S, max(SOON_S, (now_s - self.since_s[sensor]) * SOON_SHARE))
        if any(each.kind != DATASET for each in work):  # a dataset is always there
            return OPEN_S
        return IDLE_WATCH_S if sensor == names.WATCH_ATTEMPTS else IDLE_S


UNKNOWN = Pace(work={}, since_s={})  # before a first look, and while the ledger cannot be read


def work_by_sensor(work: Sequence[Work]) -> dict[str, frozenset[Work]]:
    """Return what each of our sensors has to look at."""
    found: dict[str, set[Work]] = {name: set() for name in _SENSORS}
    for each in work:
        for name in _sensors_of(each):
            found[name].add(each)
    # Gangs and evals wait for the same devices: an end of the one is news to the other that waits.
    gangs, evals = found[names.LAUNCH_ATTEMPTS], {each for each in work if each.kind == "eval"}
    if gangs and evals:
        found[names.RUN_EVALS] |= gangs
        found[names.LAUNCH_ATTEMPTS] = gangs | evals
    return {name: frozenset(each) for name, each in found.items()}


def _sensors_of(work: Work) -> tuple[str, ...]:
    if work.kind == DATASET:
        return (names.SHOW_DATASETS,)
    if work.kind == NEWS:
        return (names.SEND_NOTIFICATIONS,)
    if work.kind == STUDY:
        return (names.TUNE_STUDIES, names.SHOW_STUDIES)
    if work.kind == "commits":
        return (names.RUN_EVALS,)
    if work.kind == "eval":  # once it is over, its run may be finished
        return (names.RUN_EVALS, names.WATCH_ATTEMPTS)
    return (names.WATCH_HEALTH, *_sensors_of_run(work))


def _sensors_of_run(work: Work) -> tuple[str, ...]:
    if work.reason is None:
        return (names.WATCH_ATTEMPTS, *([names.LAUNCH_ATTEMPTS] if work.number else []))
    reason = TerminationReason(work.reason)
    return (sensor_of(reason), *([names.RUN_EVALS] if reason in HAS_ALL_STEPS else []))


_SENSORS = (
    names.LAUNCH_ATTEMPTS,
    names.RETRY_INFRASTRUCTURE,
    names.RETRY_NUMERICS,
    names.RETRY_OOM,
    names.RETRY_PREEMPTED,
    names.RUN_EVALS,
    names.SEND_NOTIFICATIONS,
    names.SHOW_DATASETS,
    names.SHOW_STUDIES,
    names.TUNE_STUDIES,
    names.WATCH_ATTEMPTS,
    names.WATCH_HEALTH,
)
