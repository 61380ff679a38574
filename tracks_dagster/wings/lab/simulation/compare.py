"""Several policies and cadences on the same histories, side by side.

The best that is possible is computed beside them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from statistics import median

from tracks_dagster.checkpoints.cadence import (
    BLOCKING_S_MIN,
    Exposure,
    best_interval_s,
    mean_time_between,
    pool_record,
)
from tracks_dagster.ledger.deciding import Wait
from tracks_dagster.retry.decide import decide
from tracks_dagster.retry.decision import Decision, Refuse, Retry
from tracks_dagster.retry.policy import HOUR_S, RetryPolicy
from tracks_dagster.track.bodies import AUTOMATIC, CheckpointCadence, Debit
from tracks_dagster.track.reasons import ReasonFamily, TerminationReason
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.wings.lab.simulation.outcome import Outcome, sum_outcomes
from tracks_dagster.wings.lab.simulation.play import Decider, Pacer, Scenario, simulate
from tracks_dagster.wings.lab.simulation.tracks import SimulatedRun
from tracks_dagster.wings.lab.simulation.world import Start

OURS = "ours"
ADVISED = "√(2·δ·M)"
EVERY_S = (600.0, 3600.0)  # the fixed intervals that are compared, unless others are asked for
LAUNCHES_MAX = 100_000
FIRST_EVERY_S = 600.0  # while nothing is known of the pool, as `remediation` begins as well
FIXED_RETRIES = (0, 3, None)  # None: without limit
NEVER = CheckpointCadence()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One choice over all scenarios. outcome: of all together, runs: of each.

    best_shares: kept time over what perfect knowledge keeps, of each scenario in which that keeps
    anything; None where there is no such best.
    """

    policy: str
    cadence: str
    outcome: Outcome
    runs: tuple[Outcome, ...]
    best_shares: tuple[float, ...] | None = None

    @property
    def best_share_median(self) -> float | None:
        """The median of the shares of the best."""
        return median(self.best_shares) if self.best_shares else None

    @property
    def best_share_worst(self) -> float | None:
        """The smallest share of the best."""
        return min(self.best_shares) if self.best_shares else None


def choices(
    policy: RetryPolicy, *, blocking_s: float, every_s: Sequence[float] = EVERY_S
) -> Iterator[Choice]:
    """Yield ours first, then other retries with its cadence, then other cadences with its retries."""
    advice, decider = advised(blocking_s), ours(policy)
    yield Choice(policy=OURS, cadence=ADVISED, decider=decider, pacer=advice)
    for count in FIXED_RETRIES:
        name = retries_name(count)
        yield Choice(policy=name, cadence=ADVISED, decider=fixed_retries(count), pacer=advice)
    for seconds in every_s:
        pacer = always(CheckpointCadence(every_s=seconds))
        yield Choice(policy=OURS, cadence=f"{seconds:g} s", decider=decider, pacer=pacer)
    yield Choice(policy=OURS, cadence="never", decider=decider, pacer=always(NEVER))


def pool_choices(
    policy: RetryPolicy, *, blocking_s: float, pools: Mapping[str, str]
) -> Iterator[Choice]:
    """Yield ours with other pools (the policy's, else `pools`), and two that stay in one."""
    advice = advised(blocking_s)
    moving = policy if policy.other_pools else replace(policy, other_pools=pools)
    staying = replace(policy, other_pools={})
    for name, decider in (
        ("ours, other pools", ours(moving)),
        ("ours, its own pool", ours(staying)),
        (retries_name(None), fixed_retries(None)),
    ):
        yield Choice(policy=name, cadence=ADVISED, decider=decider, pacer=advice)


def compare(
    scenarios: Sequence[Scenario], chosen: Sequence[Choice], *, has_best: bool
) -> list[Row]:
    """Return a row for each choice. has_best: whether all that ends attempts comes at known times."""
    best_s = [best_kept_s(scenario) if has_best else 0.0 for scenario in scenarios]
    rows = []
    for choice in chosen:
        runs = tuple(simulate(each, choice.decider, choice.pacer) for each in scenarios)
        shares = tuple(
            run.kept_s / best for run, best in zip(runs, best_s, strict=True) if best > 0
        )
        rows.append(
            Row(
                policy=choice.policy,
                cadence=choice.cadence,
                outcome=sum_outcomes("all", runs),
                runs=runs,
                best_shares=shares if has_best else None,
            )
        )
    return rows


def row_json(row: Row) -> dict[str, Json]:
    """Return a row: its names, all runs together, and each of them."""
    best: dict[str, Json] = {}
    if row.best_shares is not None:
        best = {
            "share_of_best": {
                "median": row.best_share_median,
                "worst": row.best_share_worst,
                "each": list(row.best_shares),
            }
        }
    return {
        "policy": row.policy,
        "cadence": row.cadence,
        **outcome_json(row.outcome),
        **best,
        "runs": [{"name": run.name, **outcome_json(run)} for run in row.runs],
    }


def outcome_json(outcome: Outcome) -> dict[str, Json]:
    """Return what one run, or several together, came to."""
    return {
        "ettr": outcome.ettr,
        "wall_s": outcome.wall_s,
        "buckets_s": {
            "kept": outcome.kept_s,
            "lost": outcome.lost_s,
            "saving": outcome.saving_s,
            "restart": outcome.restart_s,
            "waiting": outcome.waiting_s,
            "down": outcome.down_s,
            "given_up": outcome.given_up_s,
        },
        "attempts": outcome.attempts,
        "ends": dict(outcome.ends),
        "refused": list(outcome.refused),
        "complete": outcome.complete,
        "device_hours": outcome.device_s / HOUR_S,
        "wasted_device_hours": outcome.wasted_device_s / HOUR_S,
        "wasted_device_hours_by_reason": {
            reason: seconds / HOUR_S for reason, seconds in outcome.wasted.items()
        },
    }


# --- the best that is possible --------------------------------------------------------------------
#
# With the interruptions known beforehand, and by closed form.


def best_kept_s(scenario: Scenario) -> float:
    """Return the time kept by anyone who knows each interruption: it saves once, right before each.

    Of `u` seconds of capacity it keeps u − restart − save, in whole steps, and nothing where that is
    less than a step; the last, which nothing ends before the horizon, needs no save. Worlds whose
    ends come at times only: a defect has no best. Nobody waits for a decision or a person.
    """
    costs = scenario.costs
    kept_s = 0.0
    for from_s, until_s in spans(scenario):
        save_s = costs.blocking_s if until_s < scenario.horizon_s else 0.0
        kept_s += max(0, math.floor((until_s - from_s - save_s) / costs.step_s)) * costs.step_s
    return kept_s


def spans(scenario: Scenario) -> Iterator[tuple[float, float]]:
    """Yield from when to when each launch can work, its restart done, up to the horizon.

    For who starts again at once: nobody waits for a decision or a person.
    """
    world, job = scenario.world(), scenario.job
    compute = SimulatedRun(job).state.declared.compute
    now_s = scenario.begins_s
    for number in range(1, LAUNCHES_MAX):
        launch = world.launch(number, now_s, compute)
        if launch is None or launch.at_s >= scenario.horizon_s:
            return
        ends = world.ends(
            Start(launch=launch, resumed_step=0, config=job.config, roles=job.roles, met={})
        )
        end_s = min((e.at_s for e in ends if e.at_s is not None), default=math.inf)
        yield launch.at_s + launch.restart_s, min(end_s, scenario.horizon_s)
        if end_s > scenario.horizon_s:
            return
        now_s = end_s
    raise AssertionError(f"{scenario.name}: {LAUNCHES_MAX} launches and no end.")


def best_ettr(*, blocking_s: float, restart_s: float, mean_time_s: float) -> float:
    """Return the ETTR at Young's interval τ = √(2·δ·M), for interruptions without memory.

    Daly (2006): with a restart of R seconds, which may itself be interrupted, τ of work and its save
    take M·e^(R/M)·(e^((τ+δ)/M) − 1) on average. For δ = 30 s, R = 300 s, M = 11 135 s: τ = 817 s
    takes 904 s, so 0.904. To first order 1 − √(2·δ/M) − R/M = 0.900.
    """
    interval_s = best_interval_s(blocking_s, mean_time_s)
    took_s = (
        mean_time_s
        * math.exp(restart_s / mean_time_s)
        * math.expm1((interval_s + blocking_s) / mean_time_s)
    )
    return interval_s / took_s


# --- what is compared -----------------------------------------------------------------------------
#
# Ways to decide on a failure, and ways to choose how often to save.
# `ours` is `decide` under a retry policy, and the cadence that `checkpoints.cadence` advises from
# what the run went through. The others are what a job system without reasons has.


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One row of a comparison: who decides, and how often is saved, each with its name."""

    policy: str
    cadence: str
    decider: Decider
    pacer: Pacer


def ours(policy: RetryPolicy) -> Decider:
    """Return `decide` under `policy`."""

    def decider(state: RunState, now: datetime) -> Decision:
        return decide(state, policy, now)

    return decider


def fixed_retries(count: int | None, *, capacity_is_free: bool = False) -> Decider:
    """Return a decider that retries at once, with nothing changed, `count` times; None: always.

    The count starts over when a person takes the run up. capacity_is_free: what the pool took away
    counts nothing, as where preemptions have a counter of their own.
    """

    def decider(state: RunState, now: datetime) -> Decision:
        failed = state.attempts[-1]
        reason = failed.reason or TerminationReason.UNKNOWN
        if reason is TerminationReason.USER_CANCELLED:
            return Wait(why="A person ended the attempt.")
        used = _used(state, capacity_is_free=capacity_is_free)
        if count is not None and used >= count and not (capacity_is_free and _is_capacity(reason)):
            return Refuse(
                reason=reason,
                limit="reason",
                decision=f"{used} of {count} retries used",
                what_to_do="",
                counted_seqs=(),
            )
        return Retry(
            decision="retried at once, with nothing changed",
            debit=Debit(reason=reason.value, amount=1.0, fingerprint=None, why="a fixed number"),
            remediation=(),
            config=failed.opened.config,
            compute=failed.opened.compute,
            snapshot=failed.opened.snapshot,
            resume=state.resumes_from,
            counted_seqs=(),
            allows_environment_change=False,
        )

    return decider


def advised(blocking_s: float) -> Pacer:
    """Return the pacer that follows `tracks checkpoints advise`, asked as each attempt opens."""

    def pacer(exposures: list[Exposure]) -> CheckpointCadence:
        mean_time = mean_time_between(pool_record("simulated", "gpu", exposures))
        if mean_time is None:
            return CheckpointCadence(every_s=FIRST_EVERY_S)
        every_s = best_interval_s(max(blocking_s, BLOCKING_S_MIN), mean_time.seconds)
        return CheckpointCadence(every_s=every_s)

    return pacer


def always(cadence: CheckpointCadence) -> Pacer:
    """Return the pacer that saves so, whatever happens."""
    return lambda exposures: cadence


def retries_name(count: int | None) -> str:
    """Return what a fixed number of retries is called in a table."""
    return "unlimited retries" if count is None else f"{count} retries"


def _used(state: RunState, *, capacity_is_free: bool) -> int:
    """Return the retries since the run began, or since a person took it up."""
    used = 0
    for attempt, before in zip(
        reversed(state.attempts), reversed(state.attempts[:-1]), strict=False
    ):
        if attempt.opened.cause != AUTOMATIC:
            break
        reason = before.reason or TerminationReason.UNKNOWN
        used += not (capacity_is_free and _is_capacity(reason))
    return used


def _is_capacity(reason: TerminationReason) -> bool:
    return reason.family is ReasonFamily.CAPACITY
