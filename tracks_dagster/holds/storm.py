"""A storm: many attempts end in one compute pool within minutes, so retries into it pause.

What ends so often together has one cause outside of the runs (a power cut, a store that is down, a
scheduler that takes everything), and retries at once would only spend budgets on it. The pause lasts
until the pool has been quiet for a while: the first runs that come back are the probe, and what ends
again makes the others wait on. It is bounded for each attempt, so a pool that never calms down cannot
starve a run. Pure: the pool's recent ends come in as data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from tracks_dagster.holds.hold import Hold, HoldAct, key_of_pool
from tracks_dagster.track.records import format_time


@dataclass(frozen=True, slots=True, kw_only=True)
class StormRule:
    """When the ends in a pool are a storm, and how long its retries pause.

    ends: that many attempts inside `window_s`, of at least `runs` training runs, which are at least
    `share` (0 to 1) of those that the pool works for. ends None: never.
    pause_s: how long the pool must have been quiet; pause_s_max: the longest that one attempt's retry
    is put off, from its end.
    """

    ends: int | None = 10
    runs: int = 3
    share: float = 0.2
    window_s: float = 300.0
    pause_s: float = 120.0
    pause_s_max: float = 900.0

    def __post_init__(self) -> None:
        if (self.ends is not None and self.ends < 2) or self.runs < 1:
            raise ValueError("A storm is at least 2 ends, of at least 1 run.")
        if not 0.0 <= self.share <= 1.0:
            raise ValueError(f"A storm's share of {self.share} is not a share of a pool's runs.")
        if not (self.window_s > 0 and 0 < self.pause_s <= self.pause_s_max):
            raise ValueError("A storm needs a window, and a pause that is not above its maximum.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolEnd:
    """The end of one attempt in a pool."""

    run_id: str
    attempt_id: int
    ended_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """Recent ends in a compute pool, in any order; those as meant are not counted.

    ends: at least those inside the window; run_count: unfinished training runs that use the pool.
    """

    pool: str
    ends: Sequence[PoolEnd] = ()
    run_count: int = 0


def find_storm(view: PoolView, rule: StormRule, now: datetime) -> Hold | None:
    """Return the hold of a storm on a pool, or None. More ends never end a storm.

    at: of the newest end; until: when the pool was quiet for long enough, if nothing else ends there.
    """
    if rule.ends is None or len(view.ends) < rule.ends:
        return None
    since = now - timedelta(seconds=rule.window_s)
    inside = {(e.run_id, e.attempt_id): e.ended_at for e in view.ends if e.ended_at > since}
    runs = {run_id for run_id, _ in inside}
    if len(inside) < rule.ends or len(runs) < rule.runs:
        return None
    if len(runs) < rule.share * max(view.run_count, len(runs)):
        return None
    first_at, newest_at = min(inside.values()), max(inside.values())
    return Hold(
        what=key_of_pool(view.pool),
        called=f"pool {view.pool}",
        act=HoldAct.STORM,
        why=(
            f"{len(inside)} attempts of {len(runs)} runs ended in pool {view.pool} within "
            f"{rule.window_s / 60:g} minutes, since {format_time(first_at)}"
        ),
        at=newest_at,
        until=newest_at + timedelta(seconds=rule.pause_s),
    )


def pause_ends_at(storm: Hold, rule: StormRule, ended_at: datetime, share: float) -> datetime:
    """Return when an attempt that ended at `ended_at` may be retried, if nothing ends meanwhile.

    share: 0.5 to 1, a hash of run and attempt: those that waited do not come back in one moment.
    """
    latest = latest_at(rule, ended_at)
    if storm.at is None:
        return latest
    return min(storm.at + timedelta(seconds=rule.pause_s * share), latest)


def latest_at(rule: StormRule, ended_at: datetime) -> datetime:
    """Return when the retry of what ended at `ended_at` stops waiting for any storm."""
    return ended_at + timedelta(seconds=rule.pause_s_max)
