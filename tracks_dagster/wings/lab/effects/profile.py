"""Profile a run from its journals and records, and what its pool does to it; nothing is written."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise
from statistics import median

from tracks_dagster.attempts.pace import measure
from tracks_dagster.checkpoints.cadence import BLOCKING_S_MIN
from tracks_dagster.checkpoints.effects.cadence import advise_cadence
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.ledger.prices import Prices
from tracks_dagster.ledger.timeline import accelerator_of
from tracks_dagster.stores.journals import StepLine, newest_steps
from tracks_dagster.track.bodies import ComputeRequest
from tracks_dagster.track.errors import NothingYet
from tracks_dagster.track.placement import pool_of
from tracks_dagster.track.records import parse_time
from tracks_dagster.track.roles import GLOBAL_BATCH, value_of
from tracks_dagster.track.states.run_state import AttemptState, RunState
from tracks_dagster.wings.lab.profile import (
    ASSUMED_S,
    Interruptions,
    Money,
    Profile,
    StepTimes,
    quantile,
    shares_of,
    stalls_of,
)

STEPS_MIN = 3  # two lengths, so that there is a spread
ATTEMPTS_MAX = 5  # newest attempts that are looked into for steps


def read_profile(tracks: Tracks, run_id: str) -> Profile:
    """Return the profile of the newest attempt that ran STEPS_MIN steps.

    Raises UnknownRun, and NothingYet where no attempt ran so many.
    """
    state = tracks.run(run_id)
    placed = [each for each in state.attempts if each.placed is not None][-ATTEMPTS_MAX:]
    for attempt in reversed(placed):
        lines = _lines(tracks, state, attempt)
        if len(lines) >= STEPS_MIN:
            return _profile(state, attempt, lines)
    raise NothingYet(
        f"No attempt of {run_id} has {STEPS_MIN} steps in its journal yet, which a profile is made of; "
        f"`tracks status {run_id}` says what it does."
    )


def _lines(tracks: Tracks, state: RunState, attempt: AttemptState) -> list[StepLine]:
    """Return the newest steps in a row, without the launch's first: it compiles, and warms caches."""
    assert attempt.placed is not None
    launch_id = attempt.placed.launch_id
    lines = newest_steps(tracks.store, state.ref(attempt), launch_id)
    lines = [line for line in lines if line.step > attempt.resumed_step + 1]
    breaks = [at for at, (a, b) in enumerate(pairwise(lines), 1) if b.step != a.step + 1]
    return lines[breaks[-1] :] if breaks else lines


def _profile(state: RunState, attempt: AttemptState, lines: list[StepLine]) -> Profile:
    ends = [parse_time(line.at).timestamp() for line in lines]
    pace = measure(attempt.attempt_id, ends)
    steps = [
        StepTimes(wall_s=later - earlier, exchange_s=line.exchange_s)
        for (earlier, later), line in zip(pairwise(ends), lines[1:], strict=True)
        if later >= earlier  # a clock that was set back measures nothing
    ]
    if pace is None or pace.step_s <= 0:
        raise NothingYet(
            f"By the clock of its journal the steps of {state.run_id} took no time; nothing can be "
            "said of how fast it is."
        )
    walls = [step.wall_s for step in steps]
    stalls, stalled_s = stalls_of(steps)
    config, roles = attempt.opened.config, state.declared.roles
    batch = value_of(config, roles, GLOBAL_BATCH)
    starts = [s for each in state.attempts if (s := _start_s(each)) is not None]
    ended = attempt.ended
    placed = attempt.placed
    return Profile(
        run_id=state.run_id,
        attempt_id=attempt.attempt_id,
        ranks=placed.world_size if placed is not None else attempt.opened.compute.ranks,
        device=accelerator_of(attempt),
        steps=len(steps),
        p50_s=quantile(walls, 0.5),
        p90_s=quantile(walls, 0.9),
        p99_s=quantile(walls, 0.99),
        pace=pace,
        shares=shares_of(lines[0].spent, lines[-1].spent, steps),
        samples_per_s=batch / pace.step_s if type(batch) is int else None,
        stalls=stalls,
        stalled_s=stalled_s,
        start_s=median(starts) if starts else None,
        starts=len(starts),
        memory=ended.memory if ended is not None else None,
    )


def _start_s(attempt: AttemptState) -> float | None:
    """Return the seconds from the attempt's first claim to its restore; None where it had none."""
    if attempt.restored_at is None or not attempt.claims:
        return None
    began: datetime = attempt.claims[0].at
    return max(0.0, (attempt.restored_at - began).total_seconds())


def money_of(prices: Prices | None, profile: Profile, compute: ComputeRequest) -> Money | None:
    """Return the price of the profile's devices; None where the table has none."""
    if prices is None:
        return None
    device_class, pool = compute.device_class, pool_of(compute)
    per_hour = prices.of(profile.device, device_class, pool=pool)
    if per_hour is None:
        return None
    on_demand = prices.of(profile.device, device_class, pool=None)
    own = per_hour if pool in prices.pools else None
    return Money(
        currency=prices.currency,
        per_device_hour=per_hour,
        on_demand_per_device_hour=per_hour if on_demand is None else on_demand,
        spot_per_device_hour=own or prices.on_spot(profile.device, device_class),
    )


def read_interruptions(
    tracks: Tracks, ledger: Ledger, profile: Profile
) -> tuple[Interruptions, str] | None:
    """Return how this run meets interruptions, by the pool's mean time between them, and what that
    rests on; "" where the pool interrupted nothing yet. None where the run has not saved.

    Raises LedgerError.
    """
    advice = advise_cadence(tracks, ledger, profile.run_id)
    if advice.saves is None:
        return None
    seen = advice.mean_time
    is_known = seen is not None and not seen.is_lower_bound
    found = Interruptions(
        blocking_s=max(advice.saves.blocking_s, BLOCKING_S_MIN),
        restart_s=profile.start_s or 0.0,
        mean_time_s=seen.seconds if seen is not None and is_known else ASSUMED_S[1],
        interval_s=advice.now_s,
    )
    return found, seen.how if seen is not None and is_known else ""
