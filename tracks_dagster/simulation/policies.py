"""What is compared in a simulation: ways to decide on a failure, and ways to choose how often to save.

`Ours` is `decide` under a retry policy, and the cadence that `checkpoints.cadence` advises from
what the run went through. The others are what a job system without reasons has.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

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
from tracks_dagster.retry.policy import RetryPolicy
from tracks_dagster.simulation.play import Decider, Pacer
from tracks_dagster.track.bodies import AUTOMATIC, CheckpointCadence, Debit
from tracks_dagster.track.reasons import ReasonFamily, TerminationReason
from tracks_dagster.track.states.run_state import RunState

FIRST_EVERY_S = 600.0  # while nothing is known of the pool, as `remediation` begins as well
FIXED_RETRIES = (0, 3, None)  # None: without limit

NEVER = CheckpointCadence()


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

    The count begins anew when a person takes the run up. capacity_is_free: what the pool took away
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
