"""What the remedy of a retry rule changes for the attempt after a failed one. Pure.

The changes themselves are functions of `remediation`; how far a rollback goes back is `rollback`'s to
say. Here they are chosen by the rule, from the history of the run.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from tracks_dagster.retry.avoidance import own_compute
from tracks_dagster.retry.policy import Remedy, RetryPolicy, RetryRule
from tracks_dagster.retry.remediation import (
    NothingToChange,
    Remedied,
    Tried,
    change_pool,
    give_more_memory,
    leave_node,
    leave_out,
    save_device_memory,
    save_sooner,
)
from tracks_dagster.retry.rollback import Rollback
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.states.run_state import AttemptState, RunState


def remedy(
    state: RunState,
    failed: AttemptState,
    rule: RetryRule,
    policy: RetryPolicy,
    now: datetime,
    rollback: Rollback | None,
) -> Remedied | NothingToChange:
    """Return what the next attempt runs with; what other parts do (adopt, collect) changes nothing."""
    tried = tried_by(failed)
    match rule.remedy:
        case Remedy.SMALLER_MICRO_BATCH:
            oom = TerminationReason.GPU_OOM
            ran_out = {tried_by(a).identity for a in state.attempts if a.reason is oom}
            return save_device_memory(tried, ran_out, policy.larger_devices)
        case Remedy.MORE_MEMORY:
            return give_more_memory(
                tried,
                declared=state.declared.compute,
                growth=policy.memory_growth,
                growth_max=policy.memory_growth_max,
            )
        case Remedy.OTHER_POOL:
            return change_pool(tried, policy.other_pools)
        case Remedy.EARLIER_CHECKPOINT if not _saved(state, failed):
            return save_sooner(tried, state.declared.cadence)
        case Remedy.ROLL_BACK if rollback is not None and rollback.onset is not None:
            return leave_out(
                tried,
                number=rollback.number,
                resumed_step=rollback.resumed_step,
                onset=rollback.onset,
            )
        case Remedy.OTHER_NODE | Remedy.ROLL_BACK_ELSEWHERE if _leaves_node(
            state, failed, rule, policy, now
        ):
            blamed = failed.ended.blamed_node if failed.ended else None
            return leave_node(tried, failed.placed, blamed)
        case _:
            return Remedied(tried=tried, changes=())


def tried_by(attempt: AttemptState) -> Tried:
    """Return what an attempt ran with, the nodes apart that it avoided only for a while."""
    opened = attempt.opened
    return Tried(config=opened.config, compute=own_compute(opened), cadence=opened.cadence)


def _saved(state: RunState, failed: AttemptState) -> bool:
    """Whether it committed a checkpoint: then a time limit costs no more than the steps after that.

    A run under a daily limit would otherwise save twice as often every day.
    """
    return any(c.ref.attempt_id == failed.attempt_id for c in state.checkpoints)


def _leaves_node(
    state: RunState, failed: AttemptState, rule: RetryRule, policy: RetryPolicy, now: datetime
) -> bool:
    """Whether this is the end, of those inside the window, from which on the node is left.

    A node that a person emptied is none to leave for good: its quarantine ends.
    """
    if rule.other_node_from is None or state.is_moved(failed):
        return False
    window_s = rule.other_node_window_s
    since = now - timedelta(seconds=window_s) if window_s is not None else None
    ends = [
        attempt
        for attempt in state.attempts
        if attempt.reason is not None
        and attempt.ended_at is not None
        and not state.is_moved(attempt)
        and policy.rule(attempt.reason).budget is rule.budget
        and (since is None or attempt.ended_at > since)
    ]
    return len(ends) >= rule.other_node_from
