"""Which pool a run continues in: it leaves one that keeps taking its devices, and comes back. Pure.

Without a pool after its own (the policy's `other_pools`) a run stays where it is, however often it is
preempted. A first preemption may be chance; the second within the hour says that the pool is short.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from tracks_dagster.retry.policy import RetryPolicy
from tracks_dagster.retry.remediation import Remedied, change_pool
from tracks_dagster.track.bodies import AUTOMATIC
from tracks_dagster.track.placement import pool_of
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.states.run_state import AttemptState, RunState
from tracks_dagster.track.text.units import duration


def in_which_pool(
    remedied: Remedied, state: RunState, failed: AttemptState, policy: RetryPolicy, now: datetime
) -> Remedied:
    """Return `remedied` in the pool that is to be tried now; a remedy that changed the pool stays."""
    compute = remedied.tried.compute
    if not policy.other_pools or compute.pool != failed.opened.compute.pool:
        return remedied
    if is_due_back(state, policy, now):
        why = f"its own pool, after {duration(policy.other_pool_s)} elsewhere"
        return change_pool(remedied, {pool_of(compute): own_pool(state)}, why=why)
    if _preemptions(state, failed, policy, now) < policy.other_pool_from:
        return remedied
    often = (
        f"preempted {policy.other_pool_from} times within {duration(policy.other_pool_window_s)}"
    )
    return change_pool(remedied, policy.other_pools, why=often)


def own_pool(state: RunState) -> str:
    """Return the pool that the run was declared for, or that a person last asked for."""
    asked = [a.opened.compute for a in state.attempts if a.opened.cause != AUTOMATIC]
    return pool_of((asked or [state.declared.compute])[-1])


def is_due_back(state: RunState, policy: RetryPolicy, now: datetime) -> bool:
    """Whether the run has been in another pool than its own for as long as the policy lets it."""
    own, since = own_pool(state), None
    for attempt in reversed(state.attempts):
        if pool_of(attempt.opened.compute) == own:
            break
        since = attempt.opened_at
    return since is not None and now - since >= timedelta(seconds=policy.other_pool_s)


def _preemptions(state: RunState, failed: AttemptState, policy: RetryPolicy, now: datetime) -> int:
    """Return how often the pool of `failed` took the run's devices lately, this time included."""
    pool = pool_of(failed.opened.compute)
    since = now - timedelta(seconds=policy.other_pool_window_s)
    if failed.reason is not TerminationReason.PREEMPTED or state.is_moved(failed):
        return 0
    return sum(
        attempt.reason is TerminationReason.PREEMPTED
        and not state.is_moved(attempt)
        and pool_of(attempt.opened.compute) == pool
        and attempt.ended_at is not None
        and attempt.ended_at > since
        for attempt in state.attempts
    )
