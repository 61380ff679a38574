"""Why an allowed retry has to wait: its backoff, a storm in its pool, an unread checkpoint.

Each pause is bounded or names what ends it. `limits` decides whether a retry is allowed at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from tracks_dagster.holds.hold import Hold
from tracks_dagster.holds.storm import latest_at, pause_ends_at
from tracks_dagster.retry.limits import (
    backoff_s,
    fruitless,
    in_a_row,
    is_free,
    limits,
    may_prove_right,
    unread,
)
from tracks_dagster.retry.policy import RetryPolicy, RetryRule
from tracks_dagster.track.bodies import Alert
from tracks_dagster.track.names import ALERT_POOL_STORM, ALERT_RETRY_STORM
from tracks_dagster.track.records import format_time, sha256_hex
from tracks_dagster.track.states.run_state import AttemptState, CheckpointState, RunState

AHEAD_S_MAX = 600.0  # an end that lies further ahead was written by a clock that is wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A pause that is not over. alert: for a person, once; None when it was raised before."""

    why: str
    until: datetime
    alert: Alert | None = None


def backing_off(
    state: RunState,
    failed: AttemptState,
    rule: RetryRule,
    policy: RetryPolicy,
    now: datetime,
) -> Pause | None:
    """Return the backoff of the next attempt, or None once it is over.

    base × 2^n, at most the maximum, times 0.5 to 1 by a hash of run and attempt: all runs that one
    outage ended do not come back in one moment. n: retries in a row without progress. Counted from
    the end of `failed`; nothing is waited for that a wrong clock puts far ahead.
    """
    first_s, max_s = rule.backoff_s, rule.backoff_s_max
    if is_free(failed, rule):
        first_s, max_s = policy.never_started_backoff_s, policy.never_started_backoff_s_max
    delay_s = backoff_s(first_s, max_s, in_a_row(state, failed, rule, policy))
    until = _ended_at(failed) + timedelta(seconds=delay_s * spread(state, failed))
    if now >= until or _is_far_ahead(failed, now):
        return None
    return Pause(
        why=f"attempt {failed.attempt_id + 1} is opened after its backoff, at {format_time(until)}.",
        until=until,
        alert=_retry_storm(state, policy),
    )


def _retry_storm(state: RunState, policy: RetryPolicy) -> Alert | None:
    """Return the alert about a run that is retried again and again without progress, or None.

    From as many retries on as ends in a pool are a storm; again each time that they have doubled.
    """
    dead, ends = fruitless(state, policy), policy.storm.ends
    if ends is None or len(dead) < ends:
        return None
    reported = [
        alert.body.data.get("retries", 0)
        for alert in state.alerts
        if alert.body.rule == ALERT_RETRY_STORM and alert.seq > dead[0].seq
    ]
    if reported and len(dead) < 2 * max(reported):
        return None
    reasons = ", ".join(sorted({str(spent.failed.reason) for spent in dead}))
    text = (
        f"{len(dead)} retries in a row without a step of progress, since {format_time(dead[0].at)} "
        f"({reasons}). They continue within their limits: `tracks explain {state.run_id} --full` shows "
        f'what they have in common, `tracks stop {state.run_id} --why "…"` ends them.'
    )
    return Alert(rule=ALERT_RETRY_STORM, text=text, data={"retries": len(dead)})


def weathering(
    state: RunState, failed: AttemptState, policy: RetryPolicy, storm: Hold, now: datetime
) -> Pause | None:
    """Return the wait for a pool in a storm to calm down, or None. Bounded for each attempt."""
    if _is_far_ahead(failed, now):
        return None
    until = pause_ends_at(storm, policy.storm, _ended_at(failed), spread(state, failed))
    if now >= until:
        return None
    latest = format_time(latest_at(policy.storm, _ended_at(failed)))
    why = (
        f"retries into pool {storm.name} pause: {storm.words}. Attempt {failed.attempt_id + 1} is "
        f"opened at {format_time(until)} if nothing else ends there, at {latest} at the latest."
    )
    data = {"pool": storm.name, "latest_at": latest}
    alert = Alert(rule=ALERT_POOL_STORM, text=why[0].upper() + why[1:], data=data)
    return Pause(why=why, until=until, alert=None if _was_alerted(state, failed) else alert)


def unproven(
    counted: RunState, failed: AttemptState, rule: RetryRule, policy: RetryPolicy, now: datetime
) -> CheckpointState | None:
    """Return the checkpoint whose bytes decide whether a limit is exhausted; None when none does.

    The next attempt would restore it, and so read it, but may not be opened before.
    """
    best = limits(counted, failed, rule, policy, now, trust=may_prove_right)
    return None if any(limit.is_exhausted for limit in best) else unread(counted)


def spread(state: RunState, failed: AttemptState) -> float:
    """Return 0.5 to 1, always the same for one attempt of one run."""
    digest = sha256_hex(f"{state.run_id}/{failed.attempt_id}".encode())
    return 0.5 + int(digest[:8], 16) / 2**33


def _ended_at(failed: AttemptState) -> datetime:
    return failed.ended_at or failed.opened_at


def _is_far_ahead(failed: AttemptState, now: datetime) -> bool:
    return _ended_at(failed) > now + timedelta(seconds=AHEAD_S_MAX)


def _was_alerted(state: RunState, failed: AttemptState) -> bool:
    since = failed.ended_seq or 0
    return any(a.body.rule == ALERT_POOL_STORM and a.seq > since for a in state.alerts)
