"""Progress against burn, as two curves over the time since a run was declared. Pure.

Retries that keep no step look like life on every other page: attempts open, devices work. Here one
curve rises and the other does not.
"""

from __future__ import annotations

from datetime import datetime

from tracks_dagster.curves.curve import TRAINING, Curve, Metric, Point, Series
from tracks_dagster.track.journal_lines import STEPS
from tracks_dagster.track.states.accounting import kept_and_lost
from tracks_dagster.track.states.run_state import AttemptState, RunState

HOUR_S = 3600.0
X_LABEL = "hours since it was declared"
ATTEMPTS_MIN = 2  # of one attempt the curves of its metrics say as much


def progress_and_burn(state: RunState, now: datetime) -> tuple[Curve, ...]:
    """Return the steps that the run rests on, and the device-hours that it has taken, by time.

    One point where an attempt was opened, and one where it ended; of an open one at `now`. Nothing of
    a run with fewer than ATTEMPTS_MIN attempts.
    """
    if len(state.attempts) < ATTEMPTS_MIN:
        return ()
    steps, hours, kept, burnt = [], [], 0, 0.0
    for attempt, account in zip(state.attempts, kept_and_lost(state), strict=True):
        ended_at = attempt.ended_at or now
        for at, is_end in ((attempt.opened_at, False), (ended_at, True)):
            if is_end:
                kept += account.kept
                burnt += _device_s(attempt, now) / HOUR_S
            x = max(0.0, (at - state.declared_at).total_seconds() / HOUR_S)
            steps.append(Point(step=kept, x=x, value=float(kept), at=at.timestamp()))
            hours.append(Point(step=kept, x=x, value=burnt, at=at.timestamp()))
    return _curve("kept steps", "steps", steps), _curve("device-hours", "h", hours)


def _device_s(attempt: AttemptState, now: datetime) -> float:
    """Return the device seconds of an attempt, so far of an open one."""
    if attempt.ended is not None:
        return attempt.ended.device_seconds
    if attempt.placed is None or attempt.placed_at is None:
        return 0.0
    return attempt.placed.world_size * max(0.0, (now - attempt.placed_at).total_seconds())


def _curve(name: str, unit: str, points: list[Point]) -> Curve:
    metric = Metric(name=name, group=TRAINING, kind=STEPS, column=name, unit=unit)
    whole = Series(attempt_id=1, rank=None, is_kept=True, points=tuple(points), count=len(points))
    return Curve(metric=metric, series=(whole,))
