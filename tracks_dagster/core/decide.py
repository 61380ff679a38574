"""What follows on the state of a run: a retry, a wait, a refusal or the end. Pure.

`decide(state, policy, now)` gives the same answer for the same history. The answer says in words what
it counted and names the records; `services.retry` makes a record of it. More debits never turn a
refusal into a retry, and more progress never a retry into a refusal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from tracks_dagster.core.advice import what_to_do
from tracks_dagster.core.bodies import ComputeRequest, ConfigChange, Debit, SnapshotRef
from tracks_dagster.core.checkpoints import CheckpointRef, checkpoint_at, resume_target
from tracks_dagster.core.evals import evals_settled, what_evals_wait_for
from tracks_dagster.core.limits import Limit, is_free, limits
from tracks_dagster.core.policy import Remedy, RetryPolicy, RetryRule
from tracks_dagster.core.promotion import promotion_is_settled
from tracks_dagster.core.reasons import TerminationReason
from tracks_dagster.core.records import Json, format_time, sha256_hex
from tracks_dagster.core.remediation import (
    NothingToChange,
    Remedied,
    Tried,
    give_more_memory,
    leave_node,
    save_device_memory,
)
from tracks_dagster.core.run_state import AttemptState, RunState

COUNTED_SEQS_MAX = 100  # named in a record of at most 16 KiB; the newest ones
DOUBLINGS_MAX = 30

_R = TerminationReason
_STOP_CAUSES = {_R.COMPLETED: "step_budget", _R.EARLY_STOPPED: "early_stop"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Open the next attempt; everything that its `attempt_opened` holds."""

    decision: str
    debit: Debit
    remediation: tuple[ConfigChange, ...]
    config: Mapping[str, Json]
    compute: ComputeRequest
    snapshot: SnapshotRef
    resume: CheckpointRef | None
    counted_seqs: tuple[int, ...]
    allows_environment_change: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Nothing to write now. until: when to decide again by itself; None: something has to happen."""

    why: str
    until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """No automatic retry. limit: as in `RetryRefused`, the first of those that are exhausted."""

    reason: TerminationReason
    limit: str
    decision: str
    what_to_do: str
    counted_seqs: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The run is over. stop_cause: as in `RunFinished`."""

    stop_cause: str
    why: str
    final: CheckpointRef | None


Decision = Retry | Wait | Refuse | Finish


def decide(
    state: RunState, policy: RetryPolicy, now: datetime, *, source_withdrawn: str | None = None
) -> Decision:
    """Return what follows on `state`. A `now` before the newest record counts as that record's.

    source_withdrawn: why, by its own track, what the run would resume from may not be resumed from;
    None where it may, and for a checkpoint of the run's own.
    """
    now = max(now, state.head.at)
    if state.finished is not None:
        return Wait(why=f"The run is finished ({state.finished.stop_cause}).")
    failed = state.last_attempt
    if failed is not None and failed.is_open:
        return Wait(why=f"Attempt {failed.attempt_id} is open.")
    stop = next((s for s in state.stops if s.body.mode == "stop"), None)
    if stop is not None:
        why = f"{stop.body.by} stopped the run (record {stop.seq}): {stop.body.why}"
        return Finish(stop_cause="user", why=why, final=_newest(state))
    if failed is None or failed.reason is None:
        return Wait(why="The run is declared; its first attempt is not opened yet.")
    if failed.reason in _STOP_CAUSES:
        return _finish(state, failed, policy)
    if (held := _held_by_a_person(state, failed)) is not None:
        return held
    if source_withdrawn is not None:
        return _cut_off(failed, failed.reason, source_withdrawn)
    return _after_failure(state, failed, failed.reason, policy, now)


def _finish(state: RunState, last: AttemptState, policy: RetryPolicy) -> Wait | Finish:
    """Finish a run that has all its steps, once its evals and its promotion are settled."""
    ended = f"Attempt {last.attempt_id} ended as {last.reason} (record {last.ended_seq})"
    if not evals_settled(state):
        attempts_max = policy.rule(_R.EVALUATOR_ERROR).count
        due = "; ".join(what_evals_wait_for(state, attempts_max=attempts_max))
        return Wait(why=f"{ended}; its evals are not settled: {due}.")
    if not promotion_is_settled(state):
        return Wait(why=f"{ended}; the promotion of its checkpoint is not decided yet.")
    cause = _STOP_CAUSES[last.reason or _R.COMPLETED]
    return Finish(stop_cause=cause, why=f"{ended}; its evals are settled.", final=_newest(state))


def _held_by_a_person(state: RunState, failed: AttemptState) -> Wait | None:
    """Return the wait for a person, who ended the attempt or whom a refusal waits for."""
    go_on = f'`tracks retry {state.run_id} --why "…"` goes on'
    stop = state.stop_for(failed)
    if stop is not None or failed.reason is _R.USER_CANCELLED:
        by = f"{stop.body.by} (record {stop.seq}: {stop.body.why})" if stop else "A person"
        return Wait(why=f"{by} ended attempt {failed.attempt_id}; {go_on}.")
    if state.refusal is not None:
        return Wait(why=f"A retry was refused (record {state.refusal.seq}); {go_on}.")
    return None


def _cut_off(failed: AttemptState, reason: TerminationReason, why: str) -> Refuse:
    """Refuse what has nothing left to resume from: a branch may not silently begin at step 0."""
    ended = f"Attempt {failed.attempt_id} ended as {reason} (record {failed.ended_seq})"
    return Refuse(
        reason=reason,
        limit="branch",
        decision=f"{ended} and is not retried: the run has no checkpoint of its own, and {why}",
        what_to_do="Declare another branch: this one goes on from that checkpoint or not at all.",
        counted_seqs=_seqs(failed, ()),
    )


def _after_failure(
    state: RunState,
    failed: AttemptState,
    reason: TerminationReason,
    policy: RetryPolicy,
    now: datetime,
) -> Retry | Wait | Refuse:
    """Ask the limits, then the remedy, then the backoff."""
    rule = policy.rule(reason)
    standing = limits(state, failed, rule, policy, now)
    exhausted = [limit for limit in standing if limit.is_exhausted]
    as_of = f"Decided as of {format_time(now)}."
    ended = f"Attempt {failed.attempt_id} ended as {reason} (record {failed.ended_seq})"
    if reason is _R.BUDGET_EXHAUSTED:
        exhausted = [limit for limit in standing if limit.name == "device_hours"]
    if exhausted:
        words = f"{ended} and is not retried: {_joined(exhausted)}. {as_of}"
        return _refusal(state, failed, reason, exhausted[0].name, words, exhausted)
    remedied = _remedy(state, failed, rule, policy, now)
    if isinstance(remedied, NothingToChange):
        words = f"{ended} and is not retried: {remedied.why}. {as_of}"
        return _refusal(state, failed, reason, "remediation", words, standing)
    due_at = _due_at(state, failed, rule, standing[0], policy)
    if now < due_at:
        return Wait(
            why=f"{ended}; attempt {failed.attempt_id + 1} is opened after its backoff, at "
            f"{format_time(due_at)}.",
            until=due_at,
        )
    resume = state.resumes_from
    words = f"{ended}: {_joined(standing)}. {_plan(state, remedied, failed, resume)} {as_of}"
    return Retry(
        decision=words,
        debit=_debit(failed, reason, rule),
        remediation=remedied.changes,
        config=remedied.tried.config,
        compute=remedied.tried.compute,
        snapshot=failed.opened.snapshot,
        resume=resume,
        counted_seqs=_seqs(failed, standing),
        # What a person let pass holds for that checkpoint, until the run has one of its own after it.
        allows_environment_change=(
            failed.opened.allows_environment_change and failed.opened.resume == resume
        ),
    )


def _refusal(
    state: RunState,
    failed: AttemptState,
    reason: TerminationReason,
    limit: str,
    words: str,
    counted: list[Limit] | tuple[Limit, ...],
) -> Refuse:
    return Refuse(
        reason=reason,
        limit=limit,
        decision=words,
        what_to_do=what_to_do(state, failed),
        counted_seqs=_seqs(failed, counted),
    )


def _remedy(
    state: RunState, failed: AttemptState, rule: RetryRule, policy: RetryPolicy, now: datetime
) -> Remedied | NothingToChange:
    """Return what the next attempt runs with; remedies that are other parts' work change nothing."""
    tried = _tried(failed)
    if rule.remedy is Remedy.SMALLER_MICRO_BATCH:
        ran_out = {_tried(a).identity for a in state.attempts if a.reason is _R.GPU_OOM}
        return save_device_memory(tried, ran_out, policy.larger_devices)
    if rule.remedy is Remedy.MORE_MEMORY:
        return give_more_memory(
            tried,
            declared=state.declared.compute,
            growth=policy.memory_growth,
            growth_max=policy.memory_growth_max,
        )
    if rule.remedy is Remedy.OTHER_NODE and _leaves_node(state, rule, policy, now):
        return leave_node(tried, failed.placed)
    return Remedied(tried=tried, changes=())


def _leaves_node(state: RunState, rule: RetryRule, policy: RetryPolicy, now: datetime) -> bool:
    """Whether this is the end, of those inside the window, from which on the node is left."""
    if rule.other_node_from is None:
        return False
    window_s = rule.other_node_window_s
    since = now - timedelta(seconds=window_s) if window_s is not None else None
    ends = [
        attempt
        for attempt in state.attempts
        if attempt.reason is not None
        and attempt.ended_at is not None
        and policy.rule(attempt.reason).budget is rule.budget
        and (since is None or attempt.ended_at > since)
    ]
    return len(ends) >= rule.other_node_from


def _due_at(
    state: RunState, failed: AttemptState, rule: RetryRule, limit: Limit, policy: RetryPolicy
) -> datetime:
    """Return when the backoff of the next attempt is over, counted from the end of this one.

    base × 2^used, at most the maximum, times 0.5 to 1 by a hash of run and attempt: all runs that
    one outage ended do not come back in one moment.
    """
    base_s, max_s = rule.backoff_s, rule.backoff_s_max
    if is_free(failed, rule):
        base_s, max_s = policy.never_started_backoff_s, policy.never_started_backoff_s_max
    delay_s = min(max_s, base_s * 2.0 ** min(limit.used, DOUBLINGS_MAX))
    digest = sha256_hex(f"{state.run_id}/{failed.attempt_id}".encode())
    share = 0.5 + int(digest[:8], 16) / 2**33
    ended_at = failed.ended_at or failed.opened_at
    return ended_at + timedelta(seconds=delay_s * share)


def _debit(failed: AttemptState, reason: TerminationReason, rule: RetryRule) -> Debit:
    if is_free(failed, rule):
        amount, why = 0.0, "no rank of the attempt ran its first line"
    elif rule.count is None:
        how = "by time" if rule.time_s is not None else "in device-hours only"
        amount, why = 0.0, f"{reason} is limited {how}"
    else:
        amount, why = 1.0, f"attempt {failed.attempt_id} ended as {reason}"
    return Debit(reason=reason.value, amount=amount, fingerprint=failed.fingerprint, why=why)


def _plan(
    state: RunState, remedied: Remedied, failed: AttemptState, resume: CheckpointRef | None
) -> str:
    changes = ", ".join(f"{c.key} {c.before} → {c.after}" for c in remedied.changes)
    if resume is None:
        start = "starts afresh: no checkpoint was committed"
    elif resume.run_id == state.run_id:
        start = f"resumes from step {resume.step} of attempt {resume.attempt_id}"
    else:
        start = f"resumes from {checkpoint_at(resume)}, which the run branched from"
    changed = f"with {changes}" if changes else "with nothing changed"
    return f"Attempt {failed.attempt_id + 1} {start}, {changed}."


def _tried(attempt: AttemptState) -> Tried:
    return Tried(config=attempt.opened.config, compute=attempt.opened.compute)


def _newest(state: RunState) -> CheckpointRef | None:
    resumable = state.resumable
    return resume_target(resumable) if resumable else None


def _joined(counted: list[Limit] | tuple[Limit, ...]) -> str:
    return "; ".join(limit.words for limit in counted)


def _seqs(failed: AttemptState, counted: list[Limit] | tuple[Limit, ...]) -> tuple[int, ...]:
    """Return the records counted, in order: the end that is decided on, and those of the limits."""
    seqs = {seq for limit in counted for seq in limit.seqs}
    if failed.ended_seq is not None:
        seqs.add(failed.ended_seq)
    return tuple(sorted(seqs))[-COUNTED_SEQS_MAX:]
