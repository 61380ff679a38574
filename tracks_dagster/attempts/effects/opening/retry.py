"""Make a record of what `decide` answers: the next attempt, a refusal, or the end of a run.

The sensors call `settle` for the reasons that are theirs; two of them at once are harmless, because
one loses its place in the track, decides again and finds nothing left to do. What a person opens is
`manual_retry`'s, outside of the automatic budget.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tracks_dagster.attempts.effects.opening.remedying import (
    QUARANTINES_MAX,
    Hands,
    free_space,
    quarantine_all,
    quarantine_its_snapshot,
)
from tracks_dagster.checkpoints.effects.proving import Unread, read_proof, refusal_of, without_proof
from tracks_dagster.holds.effects.holds import Holds
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.retry.decide import decide
from tracks_dagster.retry.decision import Decision, Finish, Refuse, Retry, Wait
from tracks_dagster.retry.effects.avoiding import avoid_now
from tracks_dagster.retry.effects.node_health import NodeHealth
from tracks_dagster.retry.policy import RetryPolicy
from tracks_dagster.retry.too_large import too_large
from tracks_dagster.track.bodies import RunFinished
from tracks_dagster.track.errors import Contended, RecordTooLarge
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Draft, Kind, Record
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.track import DECISIONS_MAX, run_track


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What came of a settling: "opened", "refused", "finished", "paused" or "waiting".

    record: the one that this call appended; None when it waits, or when another did it before. A
    pause is a wait that a person was told of, in an alert. why: the decision's words. is_ours:
    whether the reason is one of those that were asked for.
    """

    what: str
    record: Record | None
    why: str
    is_ours: bool = True


def settle(
    tracks: Tracks,
    run_id: str,
    *,
    reasons: frozenset[TerminationReason] | None,
    decided_by: str,
    policy: RetryPolicy,
    hands: Hands | None = None,
    holds: Holds | None = None,
    nodes: NodeHealth | None = None,
) -> Settled:
    """Decide what follows on the run's state, and append it, after the quarantines it asks for.

    reasons: act only when the newest attempt ended for one of these; None: for any. A stop is obeyed
    whatever the reason. hands: what remedies work with that are more than a change; without them
    nothing is collected, read or quarantined. holds: those that a tick has read already, with its
    pools; without them there are no storms. nodes: strikes the node that the newest attempt ended on;
    without it none is struck, and those on hold are avoided all the same. Idempotent and safe from two
    threads or processes: a crash between two records is taken up by the next call. What was appended
    is projected once, at the end. Raises UnknownRun and Contended.
    """
    this = _Settling(
        tracks=tracks,
        run_id=run_id,
        reasons=reasons,
        decided_by=decided_by,
        policy=policy,
        hands=hands,
        holds=holds or Holds(tracks),
        nodes=nodes,
    )
    try:
        return _settle(this)
    finally:
        tracks.project(run_track(run_id))  # also what another appended who died before he did


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settling:
    """What every part of a settling needs."""

    tracks: Tracks
    run_id: str
    reasons: frozenset[TerminationReason] | None
    decided_by: str
    policy: RetryPolicy
    hands: Hands | None
    holds: Holds
    nodes: NodeHealth | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What was done before a decision is recorded. words: what there is to say of it."""

    words: str = ""
    unread: Unread | None = None


_WHAT = {
    Kind.ATTEMPT_OPENED: "opened",
    Kind.RETRY_REFUSED: "refused",
    Kind.RUN_FINISHED: "finished",
    Kind.ALERT: "paused",
}


def _settle(this: _Settling) -> Settled:
    """Decide on the newest state, do the work that comes first, once, and append; begin again wherever
    another record came in between."""
    work: _Work | None = None
    for _ in range(DECISIONS_MAX):
        state = this.tracks.run(this.run_id)
        if this.nodes is not None and _is_whose(state, this.reasons):
            this.nodes.look(state, by=this.decided_by)
        decision = _decision(this, state)
        if work is None and (work := _do_first(this, state, decision)) is not None:
            continue  # it may have changed what follows
        decision = _after_work(this, state, decision, work)
        if not isinstance(decision, Wait) and decision.quarantine:
            quarantine_all(this.tracks, state, decision.quarantine, by=this.decided_by)
            if len(decision.quarantine) > QUARANTINES_MAX:
                why = f"{QUARANTINES_MAX} checkpoints were quarantined; the next tick goes on."
                return Settled(what="waiting", record=None, why=why)
            continue  # the record of the decision names those of the quarantines
        if isinstance(decision, Retry):
            decision = avoid_now(this.tracks, decision)
        if this.nodes is not None and this.nodes.tells_that_none_is_left(state, decision):
            continue
        draft = _draft(this, state, decision)
        if draft is None:
            is_ours = _is_whose(state, this.reasons)
            return Settled(what="waiting", record=None, why=_why(decision), is_ours=is_ours)
        settled = _append(this, state, decision, draft)
        if settled is not None:
            return settled
    raise Contended(
        f"A decision for {this.run_id} lost its place {DECISIONS_MAX} times in a row; the next tick "
        "decides again."
    )


def _decision(this: _Settling, state: RunState) -> Decision:
    now = this.tracks.now()
    decision = decide(state, this.policy, now, this.holds.on_run(state, now))
    is_stop = isinstance(decision, Finish) and decision.stop_cause == "user"
    if is_stop or _is_whose(state, this.reasons):
        return decision
    reason = state.last_attempt.reason if state.last_attempt is not None else None
    return Wait(why=f"{this.decided_by} does not decide what follows on {reason}.")


def _is_whose(state: RunState, reasons: frozenset[TerminationReason] | None) -> bool:
    """Whether what follows is for whoever decides `reasons`; before the first end, for anybody."""
    reason = state.last_attempt.reason if state.last_attempt is not None else None
    return reasons is None or reason is None or reason in reasons


def _do_first(this: _Settling, state: RunState, decision: Decision) -> _Work | None:
    """Do the work that `decision` asks for before its record; None where it asks for none."""
    tracks, hands, by = this.tracks, this.hands, this.decided_by
    if hands is None:
        return None
    if isinstance(decision, Retry) and decision.collects_first:
        return _Work(words=free_space(tracks, hands, this.run_id, by=by))
    if isinstance(decision, Wait) and decision.verify is not None:
        return _Work(unread=read_proof(tracks, hands.checkpoints, state, decision.verify, by=by))
    if isinstance(decision, Refuse) and decision.quarantines_snapshot is not None:
        words = quarantine_its_snapshot(tracks, hands, state, state.attempts[-1], by=by)
        this.holds.ask_again()
        return _Work(words=words)
    return None


def _after_work(
    this: _Settling, state: RunState, decision: Decision, work: _Work | None
) -> Decision:
    """Return the decision with what was done before it, or could not be."""
    match decision:
        case Retry() if work is not None and work.words:
            return replace(decision, decision=f"{decision.decision} {work.words}")
        case Refuse() if work is not None and work.words:
            return replace(decision, what_to_do=f"{decision.what_to_do} {work.words}")
        case Wait() if work is not None and work.unread is not None and decision.verify:
            return without_proof(state, decision, work.unread, this.tracks.now())
        case _:
            return decision


def _append(this: _Settling, state: RunState, decision: Decision, draft: Draft) -> Settled | None:
    """Append the decision; None when another record came first.

    One that no record holds becomes a refusal, which does: trying again would fail for ever.
    """
    try:
        after = this.tracks.append_to(state, draft)
    except RecordTooLarge as error:
        if not isinstance(decision, Retry | Refuse):
            raise
        decision = too_large(state, decision, draft, error)
        draft = refusal_of(this.tracks, state, decision, by=this.decided_by, policy=this.policy)
        after = this.tracks.append_to(state, draft)
    if after is None:
        return None
    return Settled(what=_WHAT[after.head.kind], record=after.head, why=_why(decision))


def _draft(this: _Settling, state: RunState, decision: Decision) -> Draft | None:
    """Return the record that `decision` makes, or None for a wait."""
    attempt_id = len(state.attempts)
    match decision:
        case Retry():
            opened = decision.opened(decided_by=this.decided_by, policy_version=this.policy.version)
            return this.tracks.draft(Kind.ATTEMPT_OPENED, opened, attempt_id=attempt_id + 1)
        case Refuse():
            return refusal_of(this.tracks, state, decision, by=this.decided_by, policy=this.policy)
        case Finish():
            finished = RunFinished(
                stop_cause=decision.stop_cause,
                why=decision.why,
                decided_by=this.decided_by,
                final=decision.final,
            )
            return this.tracks.draft(Kind.RUN_FINISHED, finished)
        case Wait():
            if decision.alert is None:
                return None
            return this.tracks.draft(Kind.ALERT, decision.alert, attempt_id=attempt_id)


def _why(decision: Decision) -> str:
    return decision.decision if isinstance(decision, Retry | Refuse) else decision.why
