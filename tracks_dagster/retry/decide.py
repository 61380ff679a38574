"""What follows on the state of a run: a retry, a wait, a refusal or the end. Pure.

`decide(state, policy, now, holds)` gives the same answer for the same history and holds. The answer
describes what it counted and names the records; `attempts.effects.retry` appends it. More
debits never turn a refusal into a retry, and more progress never a retry into a refusal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from tracks_dagster.holds.hold import (
    CleanStart,
    Hold,
    HoldAct,
    clean_start,
    find_hold,
    key_of_pool,
    key_of_run,
    key_of_snapshot,
    loss_of_source,
    stop_of,
)
from tracks_dagster.ledger.deciding import Wait
from tracks_dagster.reasons.evidence import START_REFUSED_RULE
from tracks_dagster.retry.avoidance import own_compute
from tracks_dagster.retry.decision import (
    BRANCH_LIMIT,
    QUARANTINE_LIMIT,
    SNAPSHOT_LIMIT,
    Decision,
    Finish,
    Refuse,
    Retry,
    describe_plan,
    ended_as,
    format_limits,
    refuse_at_cap,
    refuse_for_hold,
    seqs_of,
    what_to_do,
)
from tracks_dagster.retry.elsewhere import in_which_pool
from tracks_dagster.retry.limits import Limit, is_free, limits
from tracks_dagster.retry.pauses import backing_off, unproven, weathering
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
from tracks_dagster.retry.rollback import (
    Rollback,
    as_counted,
    from_onset_on,
    plan_rollback,
    quarantines,
    rolls_back,
)
from tracks_dagster.track.bodies import Debit
from tracks_dagster.track.placement import pool_of
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import format_time
from tracks_dagster.track.states.checkpoints import CheckpointRef, resume_target
from tracks_dagster.track.states.evals import (
    HAS_ALL_STEPS,
    evals_settled,
    promotion_is_settled,
    what_evals_wait_for,
)
from tracks_dagster.track.states.run_state import AttemptState, RunState
from tracks_dagster.track.states.stop_cause import StopCause, cause_of_end

_R = TerminationReason


def decide(
    state: RunState, policy: RetryPolicy, now: datetime, holds: Sequence[Hold] = ()
) -> Decision:
    """Return what follows on `state`, as of `now`, or of the newest record where that is later.

    Windows and backoffs are measured by `now` itself: one record by a clock that is ahead lets no debit
    leave its window, and puts nothing off for days. holds: on the run's next attempt, by other tracks
    and by its pool (`Holds.on_run`); a stop of the run itself is read from `state`.
    """
    if state.finished is not None:
        return Wait(why=f"The run is finished ({state.finished.stop_cause}).")
    failed = state.last_attempt
    if failed is not None and failed.is_open:
        return Wait(why=f"Attempt {failed.attempt_id} is open.")
    if (stop := stop_of(state)) is not None:
        return _stopped(state, failed, policy, stop)
    if failed is None or failed.reason is None:
        return Wait(why="The run is declared; its first attempt is not opened yet.")
    if failed.reason in HAS_ALL_STEPS:
        return _finish(state, failed, policy)
    if (wait := _waits_for_a_person(state, failed)) is not None:
        return wait
    lost = loss_of_source(state, holds)
    if lost is not None and not state.resumable:
        why = f"the run has no checkpoint of its own, and {lost.sentence}"
        return refuse_for_hold(state, failed, BRANCH_LIMIT, why)
    failure = _Failure(state=state, failed=failed, policy=policy, now=now, holds=holds)
    decision = _after_failure(failure)
    if isinstance(decision, Refuse) and decision.limit != QUARANTINE_LIMIT:
        return decision
    snapshot = failed.opened.snapshot
    for limit, what in (
        (SNAPSHOT_LIMIT, None if snapshot is None else key_of_snapshot(snapshot)),
        (QUARANTINE_LIMIT, key_of_run(state.run_id)),
    ):
        hold = None if what is None else find_hold(holds, HoldAct.QUARANTINE, what)
        if hold is not None:
            return refuse_for_hold(state, failed, limit, hold.sentence)
    return decision


def _stopped(
    state: RunState, failed: AttemptState | None, policy: RetryPolicy, stop: Hold
) -> Finish:
    """Finish a run that a person stopped, with the newest checkpoint that is not known to be bad."""
    why = f"{stop.by} stopped the run (record {stop.seq}): {stop.why}"
    tainted = from_onset_on(state, failed, policy) if failed is not None else ()
    bad = {each.ref for each in tainted}
    good = [ref for ref in state.resumable if ref not in bad]
    final = resume_target(good) if good else None
    return Finish(stop_cause="user", why=why, final=final, quarantine=tainted)


def _finish(state: RunState, last: AttemptState, policy: RetryPolicy) -> Wait | Finish:
    """Finish a run that has all its steps, once its evals and its promotion are settled."""
    ended = ended_as(last)
    if not evals_settled(state):
        attempts_max = policy.rule(_R.EVALUATOR_ERROR).count
        due = "; ".join(what_evals_wait_for(state, attempts_max=attempts_max))
        return Wait(why=f"{ended}; its evals are not settled: {due}.")
    if not promotion_is_settled(state):
        return Wait(why=f"{ended}; the promotion of its checkpoint is not decided yet.")
    cause = cause_of_end(last) or StopCause.STEP_BUDGET
    return Finish(stop_cause=cause, why=f"{ended}; its evals are settled.", final=_newest(state))


def _waits_for_a_person(state: RunState, failed: AttemptState) -> Wait | None:
    """Return the wait for a person, who ended the attempt or has to answer a refusal."""
    resume = f'`tracks retry {state.run_id} --why "…"` resumes the run'
    by_policy = state.is_moved(failed) or state.spent_by(failed) is not None
    stop = None if by_policy else state.stop_for(failed)
    if stop is None and (refused := _refused_at_the_start(failed)) is not None:
        return Wait(
            why=f"Attempt {failed.attempt_id} (record {failed.ended_seq}): {refused} {resume}."
        )
    if stop is not None or failed.reason is _R.USER_CANCELLED:
        by = f"{stop.body.by} (record {stop.seq}: {stop.body.why})" if stop else "A person"
        return Wait(why=f"{by} ended attempt {failed.attempt_id}; {resume}.")
    if state.refusal is not None:
        return Wait(why=f"A retry was refused (record {state.refusal.seq}); {resume}.")
    return None


def _refused_at_the_start(failed: AttemptState) -> str | None:
    """Return why no gang was started, where a quarantine is why: nobody ended the attempt."""
    ended, reading = failed.ended, failed.reclassified or failed.ended
    if ended is None or reading is None or failed.reason is not _R.USER_CANCELLED:
        return None
    if reading.rule != START_REFUSED_RULE:
        return None
    why = ended.root_message.strip()
    release = "" if "tracks release" in why else " `tracks release` ends the quarantine."
    return f"{why}{release} Once it is released, or where a clean checkpoint is left,"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    """A failed attempt, and all that the decision on it rests on."""

    state: RunState
    failed: AttemptState
    policy: RetryPolicy
    now: datetime
    holds: Sequence[Hold]

    @property
    def rule(self) -> RetryRule:
        return self.policy.rule_for(self.failed)

    @property
    def counted(self) -> RunState:
        """The state as the limits count it."""
        return as_counted(self.state, self.failed, self.rule)

    @property
    def as_of(self) -> str:
        return f"Decided as of {format_time(max(self.now, self.state.head.at))}."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Where the next attempt begins, and what it runs with. rollback: None where it goes back no
    further than to the newest checkpoint."""

    rollback: Rollback | None
    start: CleanStart
    remedied: Remedied


def _after_failure(this: _Failure) -> Retry | Wait | Refuse:
    """Ask the limits, then for a plan, then the pool and the backoff."""
    counted = limits(this.counted, this.failed, this.rule, this.policy, this.now)
    plan = _over_the_limits(this, counted) or _plan(this, counted)
    if not isinstance(plan, _Plan):
        return plan
    return _pause(this, plan) or _retry(this, plan, counted)


def _over_the_limits(this: _Failure, counted: Sequence[Limit]) -> Wait | Refuse | None:
    """Return the refusal by exhausted limits, or the wait for the read of a checkpoint that may give
    some of it back; None within all limits."""
    exhausted = [limit for limit in counted if limit.is_exhausted]
    if (stop := this.state.spent_by(this.failed)) is not None:
        return refuse_at_cap(this.state, this.failed, stop.body.why)
    if this.failed.reason is _R.BUDGET_EXHAUSTED:
        exhausted = [limit for limit in counted if limit.name == "device_hours"]
    elif exhausted:
        proof = unproven(this.counted, this.failed, this.rule, this.policy, this.now)
        if proof is not None:
            why = (
                f"{ended_as(this.failed)}; {format_limits(exhausted)}. The checkpoint of step "
                f"{proof.ref.step} (record {proof.seq}) is progress that gives some of it back once "
                "its bytes were read."
            )
            return Wait(why=why, verify=proof.ref)
    if not exhausted:
        return None
    return _refusal(this, exhausted[0].name, format_limits(exhausted, named=True), exhausted)


def _plan(this: _Failure, counted: Sequence[Limit]) -> _Plan | Refuse:
    """Return where the next attempt begins and what it runs with; a refusal where nothing is left to
    begin at or to change."""
    state, failed, rule = this.state, this.failed, this.rule
    rollback: Rollback | None = None
    asked = state.resumes_from
    if rolls_back(rule):
        lost = loss_of_source(state, this.holds)
        back = plan_rollback(state, failed, rule, this.policy, lost_source=lost)
        if isinstance(back, NothingToChange):
            return _refusal(this, "remediation", back.why, counted)
        rollback, asked = back, back.resume
    given_up = [each.ref for each in rollback.passed_over] if rollback is not None else []
    start = clean_start(state, asked, this.holds, given_up=given_up)
    if start.hold is not None:
        return refuse_for_hold(state, failed, QUARANTINE_LIMIT, start.words)
    if rollback is not None:
        rollback = replace(rollback, resume=start.resume)
    remedied = remedy(state, failed, rule, this.policy, this.now, rollback)
    if isinstance(remedied, NothingToChange):
        return _refusal(this, "remediation", remedied.why, counted)
    remedied = in_which_pool(remedied, state, failed, this.policy, this.now)
    return _Plan(rollback=rollback, start=start, remedied=remedied)


def _pause(this: _Failure, plan: _Plan) -> Wait | None:
    """Return the wait for a storm in the plan's pool, or for the backoff."""
    state, failed, pool = this.state, this.failed, pool_of(plan.remedied.tried.compute)
    storm = find_hold(this.holds, HoldAct.STORM, key_of_pool(pool))
    pause = weathering(state, failed, this.policy, storm, this.now) if storm is not None else None
    pause = pause or backing_off(state, failed, this.rule, this.policy, this.now)
    if pause is None:
        return None
    return Wait(why=f"{ended_as(failed)}; {pause.why}", until=pause.until, alert=pause.alert)


def _retry(this: _Failure, plan: _Plan, counted: Sequence[Limit]) -> Retry:
    state, failed, opened = this.state, this.failed, this.failed.opened
    rollback, resume, tried = plan.rollback, plan.start.resume, plan.remedied.tried
    words = describe_plan(state, plan.remedied, failed, resume, rollback)
    sentences = (
        f"{ended_as(failed)}: {format_limits(counted)}.",
        plan.start.words,
        words,
        this.as_of,
    )
    return Retry(
        decision=" ".join(filter(None, sentences)),
        debit=_debit(failed, this.rule),
        remediation=plan.remedied.changes,
        config=tried.config,
        compute=tried.compute,
        snapshot=opened.snapshot,
        resume=resume,
        counted_seqs=seqs_of(failed, counted, rollback.seqs if rollback else ()),
        cadence=tried.cadence,
        trainer=opened.trainer,
        program=opened.program,
        code=opened.code,
        quarantine=(
            quarantines(failed, rollback.onset, resume, rollback.passed_over) if rollback else ()
        ),
        collects_first=this.rule.remedy is Remedy.COLLECT_CHECKPOINTS,
        # A person's permission covers that checkpoint, until the run has one of its own after it.
        allows_environment_change=opened.allows_environment_change and opened.resume == resume,
    )


def _refusal(this: _Failure, limit: str, why: str, counted: Sequence[Limit]) -> Refuse:
    """Refuse the retry, after the quarantine of what nobody may resume from or train on."""
    failed = this.failed
    is_confirmed = limit == "reason" and this.rule.remedy is Remedy.QUARANTINE_SNAPSHOT
    return Refuse(
        reason=failed.reason or _R.UNKNOWN,
        limit=limit,
        decision=f"{ended_as(failed)} and is not retried: {why}. {this.as_of}",
        what_to_do=what_to_do(this.state, failed),
        counted_seqs=seqs_of(failed, counted),
        quarantine=from_onset_on(this.state, failed, this.policy),
        quarantines_snapshot=failed.opened.snapshot if is_confirmed else None,
    )


def _debit(failed: AttemptState, rule: RetryRule) -> Debit:
    reason = failed.reason or _R.UNKNOWN
    if is_free(failed, rule):
        amount, why = 0.0, "no rank of the attempt ran its first line, or none used a device"
    elif rule.is_unlimited or rule.time_s is not None:
        how = "by time" if rule.time_s is not None else "in device-hours only"
        amount, why = 0.0, f"{reason} is limited {how}"
    else:
        amount, why = 1.0, f"attempt {failed.attempt_id} ended as {reason}"
    return Debit(reason=reason.value, amount=amount, fingerprint=failed.fingerprint, why=why)


def _newest(state: RunState) -> CheckpointRef | None:
    resumable = state.resumable
    return resume_target(resumable) if resumable else None


def remedy(
    state: RunState,
    failed: AttemptState,
    rule: RetryRule,
    policy: RetryPolicy,
    now: datetime,
    rollback: Rollback | None,
) -> Remedied | NothingToChange:
    """Return what the next attempt runs with; adopting and collecting change nothing of it."""
    tried = tried_by(state, failed)
    match rule.remedy:
        case Remedy.SMALLER_MICRO_BATCH:
            oom = TerminationReason.GPU_OOM
            ran_out = {tried_by(state, a).identity for a in state.attempts if a.reason is oom}
            return save_device_memory(tried, ran_out, policy.larger_devices)
        case Remedy.MORE_MEMORY:
            return give_more_memory(
                tried,
                declared=state.declared.compute,
                growth=policy.memory_growth,
                growth_max=policy.memory_growth_max,
            )
        case Remedy.OTHER_POOL:
            nothing_changed = Remedied(tried=tried, changes=())
            why = "nothing started in the pool before"
            return change_pool(nothing_changed, policy.other_pools, why=why)
        case Remedy.EARLIER_CHECKPOINT if not _saved(state, failed):
            return save_sooner(tried, state.declared.cadence)
        case Remedy.ROLL_BACK if rollback is not None and rollback.onset is not None:
            return leave_out(
                tried,
                number=rollback.number,
                resumed_step=rollback.resumed_step,
                onset=rollback.onset,
                order_is_ours=failed.restored is None or failed.restored.cursor is not None,
            )
        case Remedy.OTHER_NODE | Remedy.ROLL_BACK_ELSEWHERE if _leaves_node(
            state, failed, rule, policy, now
        ):
            blamed = failed.ended.blamed_node if failed.ended else None
            return leave_node(tried, failed.placed, blamed)
        case _:
            return Remedied(tried=tried, changes=())


def tried_by(state: RunState, attempt: AttemptState) -> Tried:
    """Return what an attempt ran with, without the nodes that it avoided only for a while."""
    opened = attempt.opened
    return Tried(
        config=opened.config,
        compute=own_compute(opened),
        cadence=opened.cadence,
        roles=state.declared.roles,
    )


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
