"""What follows on the state of a run: a retry, a wait, a refusal or the end. Pure.

`decide(state, policy, now)` gives the same answer for the same history. The answer says in words what
it counted and names the records; `attempts.effects.opening.retry` makes a record of it. More debits
never turn a refusal into a retry, and more progress never a retry into a refusal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from tracks_dagster.holds.clean_start import (
    NOTHING_WITHHELD,
    CleanStart,
    NothingClean,
    Withheld,
    clean_start,
)
from tracks_dagster.reasons.evidence import START_REFUSED_RULE
from tracks_dagster.retry.decision import (
    QUARANTINE_LIMIT,
    Decision,
    Finish,
    Refuse,
    Retry,
    Wait,
    cut_off,
    in_quarantine,
    joined,
    plan_words,
    seqs_of,
    what_to_do,
    without_data,
)
from tracks_dagster.retry.limits import Limit, is_free, limits
from tracks_dagster.retry.pauses import backing_off, unproven, weathering
from tracks_dagster.retry.policy import Remedy, RetryPolicy, RetryRule
from tracks_dagster.retry.remediation import NothingToChange, Remedied
from tracks_dagster.retry.remedies import remedy
from tracks_dagster.retry.rollback import (
    Rollback,
    as_counted,
    from_onset_on,
    plan_rollback,
    quarantines,
    rolls_back,
)
from tracks_dagster.retry.storm import PoolView
from tracks_dagster.track.bodies import Debit
from tracks_dagster.track.placement import pool_of
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import format_time
from tracks_dagster.track.states.checkpoints import CheckpointRef, resume_target
from tracks_dagster.track.states.evals import evals_settled, what_evals_wait_for
from tracks_dagster.track.states.promotion import promotion_is_settled
from tracks_dagster.track.states.run_state import AttemptState, RunState

_R = TerminationReason
_STOP_CAUSES = {_R.COMPLETED: "step_budget", _R.EARLY_STOPPED: "early_stop"}


def decide(
    state: RunState,
    policy: RetryPolicy,
    now: datetime,
    *,
    source_withdrawn: str | None = None,
    snapshot_withdrawn: str | None = None,
    withheld: Withheld = NOTHING_WITHHELD,
    pool: PoolView | None = None,
) -> Decision:
    """Return what follows on `state`, as of `now`, or of the newest record where that is later.

    Windows and backoffs are measured by `now` itself: one record by a clock that is ahead lets no debit
    leave its window, and puts nothing off for days.

    source_withdrawn: why, by its own track, what the run branched from may not be resumed from.
    snapshot_withdrawn: why, by its dataset's track, nobody may train on the newest attempt's snapshot.
    None where one may. withheld: what descends from a source in quarantine. pool: what ended of late
    where the newest attempt ran; None: nothing did.
    """
    if state.finished is not None:
        return Wait(why=f"The run is finished ({state.finished.stop_cause}).")
    failed = state.last_attempt
    if failed is not None and failed.is_open:
        return Wait(why=f"Attempt {failed.attempt_id} is open.")
    stop = next((s for s in state.stops if s.body.mode == "stop"), None)
    if stop is not None:
        why = f"{stop.body.by} stopped the run (record {stop.seq}): {stop.body.why}"
        return _stopped(state, failed, policy, why)
    if failed is None or failed.reason is None:
        return Wait(why="The run is declared; its first attempt is not opened yet.")
    if failed.reason in _STOP_CAUSES:
        return _finish(state, failed, policy)
    if (held := _held_by_a_person(state, failed)) is not None:
        return held
    if source_withdrawn is not None and not state.resumable:
        return cut_off(failed, failed.reason, source_withdrawn)
    decision = _after_failure(
        state, failed, failed.reason, policy, now, source_withdrawn, withheld, pool
    )
    if isinstance(decision, Refuse) and decision.limit != QUARANTINE_LIMIT:
        return decision
    if snapshot_withdrawn is not None:
        return without_data(state, failed, failed.reason, snapshot_withdrawn)
    if withheld.run is not None:
        return in_quarantine(state, failed, failed.reason, withheld.run)
    return decision


def _stopped(state: RunState, failed: AttemptState | None, policy: RetryPolicy, why: str) -> Finish:
    """Finish a run that a person stopped, with the newest checkpoint that is not known to be bad."""
    tainted = from_onset_on(state, failed, policy) if failed is not None else ()
    bad = {each.ref for each in tainted}
    good = [ref for ref in state.resumable if ref not in bad]
    final = resume_target(good) if good else None
    return Finish(stop_cause="user", why=why, final=final, quarantine=tainted)


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
    stop = None if state.is_moved(failed) else state.stop_for(failed)
    if stop is None and (said := _said_at_the_start(failed)) is not None:
        return Wait(why=f"Attempt {failed.attempt_id} (record {failed.ended_seq}): {said} {go_on}.")
    if stop is not None or failed.reason is _R.USER_CANCELLED:
        by = f"{stop.body.by} (record {stop.seq}: {stop.body.why})" if stop else "A person"
        return Wait(why=f"{by} ended attempt {failed.attempt_id}; {go_on}.")
    if state.refusal is not None:
        return Wait(why=f"A retry was refused (record {state.refusal.seq}); {go_on}.")
    return None


def _said_at_the_start(failed: AttemptState) -> str | None:
    """Return why no gang was started, where a source in quarantine is why: nobody ended the attempt."""
    ended, reading = failed.ended, failed.reclassified or failed.ended
    if ended is None or reading is None or failed.reason is not _R.USER_CANCELLED:
        return None
    if reading.rule != START_REFUSED_RULE:
        return None
    said = ended.root_message.strip()
    release = "" if "tracks release" in said else " `tracks release` ends the quarantine."
    return f"{said}{release} Once it is released, or where a clean checkpoint is left,"


def _after_failure(
    state: RunState,
    failed: AttemptState,
    reason: TerminationReason,
    policy: RetryPolicy,
    now: datetime,
    source_withdrawn: str | None,
    withheld: Withheld,
    pool: PoolView | None,
) -> Retry | Wait | Refuse:
    """Ask the limits, then the remedy, then the pool, then the backoff."""
    rule = policy.rule(reason)
    counted = as_counted(state, failed, rule)
    standing = limits(counted, failed, rule, policy, now)
    exhausted = [limit for limit in standing if limit.is_exhausted]
    as_of = f"Decided as of {format_time(max(now, state.head.at))}."
    ended = f"Attempt {failed.attempt_id} ended as {reason} (record {failed.ended_seq})"
    if reason is _R.BUDGET_EXHAUSTED:
        exhausted = [limit for limit in standing if limit.name == "device_hours"]
    elif exhausted and (proof := unproven(counted, failed, rule, policy, now)) is not None:
        return Wait(
            why=f"{ended}; {joined(exhausted)}. The checkpoint of step {proof.ref.step} (record "
            f"{proof.seq}) is progress that gives some of it back once its bytes were read.",
            verify=proof.ref,
        )
    if exhausted:
        words = f"{ended} and is not retried: {joined(exhausted, named=True)}. {as_of}"
        return _refusal(state, failed, policy, exhausted[0].name, words, exhausted)
    rollback, start, remedied = _planned(
        state, failed, rule, policy, now, source_withdrawn, withheld
    )
    if isinstance(remedied, NothingClean):
        return in_quarantine(state, failed, reason, remedied.why)
    if isinstance(remedied, NothingToChange):
        words = f"{ended} and is not retried: {remedied.why}. {as_of}"
        return _refusal(state, failed, policy, "remediation", words, standing)
    stays = pool_of(remedied.tried.compute) == pool_of(failed.opened.compute)
    storm = weathering(state, failed, policy, pool, now) if stays else None
    pause = storm or backing_off(state, failed, rule, policy, now)
    if pause is not None:
        return Wait(why=f"{ended}; {pause.why}", until=pause.until, alert=pause.alert)
    resume = start.resume
    plan = plan_words(state, remedied, failed, resume, rollback)
    words = " ".join((f"{ended}: {joined(standing)}.", *filter(None, (start.words, plan)), as_of))
    return Retry(
        decision=words,
        debit=_debit(failed, reason, rule),
        remediation=remedied.changes,
        config=remedied.tried.config,
        compute=remedied.tried.compute,
        snapshot=failed.opened.snapshot,
        resume=resume,
        counted_seqs=seqs_of(failed, standing, rollback.seqs if rollback else ()),
        cadence=remedied.tried.cadence,
        trainer=failed.opened.trainer,
        quarantine=(
            quarantines(failed, rollback.onset, resume, rollback.passed_over) if rollback else ()
        ),
        collects_first=rule.remedy is Remedy.COLLECT_CHECKPOINTS,
        # What a person let pass holds for that checkpoint, until the run has one of its own after it.
        allows_environment_change=(
            failed.opened.allows_environment_change and failed.opened.resume == resume
        ),
    )


def _planned(
    state: RunState,
    failed: AttemptState,
    rule: RetryRule,
    policy: RetryPolicy,
    now: datetime,
    source_withdrawn: str | None,
    withheld: Withheld,
) -> tuple[Rollback | None, CleanStart, Remedied | NothingToChange | NothingClean]:
    """Return how far back the next attempt begins where its rule says so, at which checkpoint, and what
    it runs with; or what is missing for that."""
    rollback, resume = None, state.resumes_from
    if rolls_back(rule):
        plan = plan_rollback(state, failed, rule, policy, source_withdrawn=source_withdrawn)
        if isinstance(plan, NothingToChange):
            return None, CleanStart(resume=None), plan
        rollback, resume = plan, plan.resume
    start = clean_start(
        state,
        resume,
        withheld,
        source_withdrawn=source_withdrawn,
        given_up=[checkpoint.ref for checkpoint in rollback.passed_over] if rollback else (),
    )
    if isinstance(start, NothingClean):
        return rollback, CleanStart(resume=None), start
    if rollback is not None:
        rollback = replace(rollback, resume=start.resume)
    return rollback, start, remedy(state, failed, rule, policy, now, rollback)


def _refusal(
    state: RunState,
    failed: AttemptState,
    policy: RetryPolicy,
    limit: str,
    words: str,
    counted: Sequence[Limit],
) -> Refuse:
    reason = failed.reason or _R.UNKNOWN
    is_confirmed = limit == "reason" and policy.rule(reason).remedy is Remedy.QUARANTINE_SNAPSHOT
    return Refuse(
        reason=reason,
        limit=limit,
        decision=words,
        what_to_do=what_to_do(state, failed),
        counted_seqs=seqs_of(failed, counted),
        quarantine=from_onset_on(state, failed, policy),
        quarantines_snapshot=failed.opened.snapshot if is_confirmed else None,
    )


def _debit(failed: AttemptState, reason: TerminationReason, rule: RetryRule) -> Debit:
    if is_free(failed, rule):
        amount, why = 0.0, "no rank of the attempt ran its first line, or none used a device"
    elif rule.count is None:
        how = "by time" if rule.time_s is not None else "in device-hours only"
        amount, why = 0.0, f"{reason} is limited {how}"
    else:
        amount, why = 1.0, f"attempt {failed.attempt_id} ended as {reason}"
    return Debit(reason=reason.value, amount=amount, fingerprint=failed.fingerprint, why=why)


def _newest(state: RunState) -> CheckpointRef | None:
    resumable = state.resumable
    return resume_target(resumable) if resumable else None
