"""The state of a training run as a pure fold over the records of its track.

Fold a prefix to get what was known then. A record that the state before it does not allow is a
TrackBroken naming it; what was folded up to there still holds. `check` is the same rule asked before
an append, so that no writer of ours puts such a record there; there `protection` has its say too. A
reader takes a decision that broke those rules as it stands: what was deleted is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from tracks_dagster.track.bodies import (
    AUTOMATIC,
    AttemptEnded,
    AttemptOpened,
    AttemptPlaced,
    AttemptReclassified,
    AttemptRestored,
    AttemptSupervised,
    CheckpointCommitted,
    CheckpointDecision,
    CheckpointVerified,
    EvalEnded,
    EvalOpened,
    EvalWaived,
    Note,
    PromotionDecided,
    RetryRefused,
    RunDeclared,
    RunFinished,
    RunLabelled,
    StageJudged,
    StopRequested,
)
from tracks_dagster.track.body_json import body_of
from tracks_dagster.track.errors import InvalidDecision, RecordNewer, TrackBroken
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Draft, Json, Kind, Record
from tracks_dagster.track.states import alerts
from tracks_dagster.track.states.checkpoints import object_prefix
from tracks_dagster.track.states.protection import objection_to
from tracks_dagster.track.states.run_state import (
    AttemptState,
    CheckpointState,
    Dated,
    EvalState,
    Labels,
    RunState,
    Supervision,
)

# --- checkpoint fold ------------------------------------------------------------------------------
#
# What records about checkpoints change in the state of a run: the part of `run_fold` about them.


def objection_to_ref(run_id: str, attempt_id: int, launch_id: Json, ref: Json) -> str | None:
    """Say why a commit may not name `ref`: it may only name what its own launch wrote."""
    if not isinstance(ref, Mapping):
        return None  # reading the body raises for what is missing
    expected = object_prefix(AttemptRef(run_id, attempt_id), str(launch_id), ref.get("step", 0))
    named = (ref.get("run_id"), ref.get("attempt_id"), ref.get("object_prefix"))
    if named == (run_id, attempt_id, expected):
        return None
    whose = "another run" if named[0] != run_id else "another attempt, launch or step"
    return (
        f"the commit names run {named[0]!r}, attempt {named[1]}, an object prefix of {whose}: "
        f"{named[2]!r}; its own is {expected!r}"
    )


def commit(state: RunState, record: Record) -> RunState:
    """Take in `checkpoint_committed`."""
    body = body_of(CheckpointCommitted, record)
    checkpoint = CheckpointState(seq=record.seq, at=record.at, body=body)
    return replace(state, checkpoints=(*state.checkpoints, checkpoint))


def decide_checkpoint(state: RunState, record: Record) -> RunState:
    """Take in a quarantine, supersession, deletion, pin or unpin; the first time of each counts."""
    body = body_of(CheckpointDecision, record)

    def decided(checkpoint: CheckpointState) -> CheckpointState:
        match record.kind:
            case Kind.CHECKPOINT_QUARANTINED if checkpoint.quarantined:
                is_passed_over = checkpoint.is_passed_over and body.is_passed_over
                return replace(checkpoint, is_passed_over=is_passed_over)
            case Kind.CHECKPOINT_QUARANTINED:
                return replace(
                    checkpoint,
                    quarantined_at=record.at,
                    quarantined_seq=record.seq,
                    is_passed_over=body.is_passed_over,
                )
            case Kind.CHECKPOINT_SUPERSEDED:
                return replace(checkpoint, superseded_at=checkpoint.superseded_at or record.at)
            case Kind.CHECKPOINT_DELETED if checkpoint.deleted:
                return checkpoint  # the first decision named the chunks
            case Kind.CHECKPOINT_DELETED:
                return replace(
                    checkpoint, deleted_at=record.at, deleted_seq=record.seq, deletion=body
                )
            case Kind.CHECKPOINT_PINNED:
                return replace(checkpoint, pins=checkpoint.pins | {body.pin or body.by})
            case _:
                return replace(checkpoint, pins=checkpoint.pins - {body.pin or body.by})

    return _with_checkpoint(state, body.manifest_sha256, decided)


def verify(state: RunState, record: Record) -> RunState:
    """Take in `checkpoint_verified`."""
    body = body_of(CheckpointVerified, record)
    return verified(state, body.manifest_sha256, record)


def verified(state: RunState, manifest_sha256: str, record: Record) -> RunState:
    """A restore reads every byte and checks it, so it is a verification like any other."""
    return _with_checkpoint(
        state, manifest_sha256, lambda c: replace(c, verified_at=c.verified_at or record.at)
    )


def _with_checkpoint(
    state: RunState, manifest_sha256: str, change: Callable[[CheckpointState], CheckpointState]
) -> RunState:
    """Change one checkpoint, which is looked for from the newest on: most records concern those."""
    before = state.checkpoints
    for at in range(len(before) - 1, -1, -1):
        if before[at].ref.manifest_sha256 == manifest_sha256:
            after = (*before[:at], change(before[at]), *before[at + 1 :])
            return replace(state, checkpoints=after)
    return state


B = TypeVar("B")

AFTER_FINISH = frozenset(
    {
        Kind.NOTE,
        Kind.ALERT,
        Kind.EVAL_OPENED,
        Kind.EVAL_ENDED,
        Kind.EVAL_WAIVED,
        Kind.PROMOTION_DECIDED,
        Kind.CHECKPOINT_VERIFIED,
        Kind.CHECKPOINT_QUARANTINED,
        Kind.CHECKPOINT_SUPERSEDED,
        Kind.CHECKPOINT_DELETED,
        Kind.CHECKPOINT_PINNED,
        Kind.CHECKPOINT_UNPINNED,
        Kind.ATTEMPT_RECLASSIFIED,
        Kind.STAGE_JUDGED,
        Kind.RUN_LABELLED,
    }
)


def fold(records: Iterable[Record], state: RunState | None = None) -> RunState | None:
    """Return the state after `records`, going on from `state`; None for an empty track.

    Raises TrackBroken at the first record that the state before it does not allow.
    """
    for record in records:
        state = apply(state, record)
    return state


def apply(state: RunState | None, record: Record) -> RunState:
    """Return the state after one more record."""
    problem = _objection(state, record.kind, record.attempt_id, record.body)
    if problem is not None:
        raise TrackBroken(f"Record {record.seq} ({record.kind}) cannot come here: {problem}.")
    if state is None:
        declared = body_of(RunDeclared, record)
        return RunState(head=record, declared=declared, declared_at=record.at)
    return replace(_APPLIERS[record.kind](state, record), head=record)


def check(state: RunState | None, draft: Draft) -> Draft:
    """Return `draft` if `state` allows it as the next record.

    Raises InvalidDecision otherwise.
    """
    problem = _objection(state, draft.kind, draft.attempt_id, draft.body)
    if problem is None and state is not None:
        problem = objection_to(state, draft.kind, draft.body)
    if problem is not None:
        raise InvalidDecision(f"Cannot append {draft.kind}: {problem}.")
    return draft


def _objection(
    state: RunState | None, kind: Kind, attempt_id: int | None, body: Mapping[str, Json]
) -> str | None:
    """Say why a record of this kind may not come next, or None."""
    if (state is None) != (kind is Kind.RUN_DECLARED):
        return "the first record of a run, and only the first, is run_declared"
    if state is None:
        return None
    if kind not in _APPLIERS:
        return f"{kind} does not belong to a run's track"
    if state.finished is not None and kind not in AFTER_FINISH:
        return f"the run was finished ({state.finished.stop_cause})"
    current = state.open_attempt
    if kind is Kind.ATTEMPT_OPENED:
        if current is not None:
            return f"attempt {current.attempt_id} is still open"
        if attempt_id != len(state.attempts) + 1:
            return f"the next attempt is {len(state.attempts) + 1}, not {attempt_id}"
        if body.get("cause") == AUTOMATIC and body.get("debit") is None:
            return "an automatic retry names its debit, of amount 0 where it is free"
        return None
    if kind is Kind.STAGE_JUDGED:
        return None if state.finished is not None else "the run is not finished"
    if kind is Kind.RUN_FINISHED:
        return None if current is None else f"attempt {current.attempt_id} is still open"
    if kind in _OF_THE_OPEN_ATTEMPT:
        launch_id = body.get("launch_id")
        if current is None or current.attempt_id != attempt_id:
            return f"attempt {attempt_id} is not the open one"
        if kind is Kind.ATTEMPT_PLACED and current.placed is not None:
            return f"attempt {attempt_id} was placed by launch {current.placed.launch_id}"
        if kind in _OF_THE_PLACED_LAUNCH and (
            current.placed is None or current.placed.launch_id != launch_id
        ):
            return f"launch {launch_id} is not the one that was placed"
        if kind is Kind.CHECKPOINT_COMMITTED:
            return objection_to_ref(state.run_id, current.attempt_id, launch_id, body.get("ref"))
        return None
    if kind in (Kind.ATTEMPT_RECLASSIFIED, Kind.RETRY_REFUSED):
        attempt = state.attempt(attempt_id or 0)
        return None if attempt and attempt.ended else f"attempt {attempt_id} has not ended"
    return None


_OF_THE_OPEN_ATTEMPT = frozenset(
    {
        Kind.ATTEMPT_SUPERVISED,
        Kind.ATTEMPT_PLACED,
        Kind.ATTEMPT_RESTORED,
        Kind.CHECKPOINT_COMMITTED,
        Kind.ATTEMPT_ENDED,
    }
)
_OF_THE_PLACED_LAUNCH = frozenset({Kind.ATTEMPT_RESTORED, Kind.CHECKPOINT_COMMITTED})


def _open(state: RunState, record: Record) -> RunState:
    attempt = AttemptState(
        attempt_id=len(state.attempts) + 1,
        opened=body_of(AttemptOpened, record),
        opened_seq=record.seq,
        opened_at=record.at,
    )
    return replace(state, attempts=(*state.attempts, attempt))


def _with_attempt(state: RunState, attempt: AttemptState) -> RunState:
    index = attempt.attempt_id - 1
    return replace(state, attempts=(*state.attempts[:index], attempt, *state.attempts[index + 1 :]))


def _attempt_of(state: RunState, record: Record) -> AttemptState:
    attempt = state.attempt(record.attempt_id or 0)
    if attempt is None:
        raise TrackBroken(
            f"Record {record.seq} speaks of attempt {record.attempt_id}; none opened."
        )
    return attempt


def _supervise(state: RunState, record: Record) -> RunState:
    attempt = _attempt_of(state, record)
    claim = Supervision(seq=record.seq, at=record.at, body=body_of(AttemptSupervised, record))
    return _with_attempt(state, replace(attempt, claims=(*attempt.claims, claim)))


def _place(state: RunState, record: Record) -> RunState:
    placed = body_of(AttemptPlaced, record)
    attempt = _attempt_of(state, record)
    after = replace(attempt, placed=placed, placed_seq=record.seq, placed_at=record.at)
    return _without_alerts_before_the_gang(_with_attempt(state, after), record)


def _restore(state: RunState, record: Record) -> RunState:
    restored = body_of(AttemptRestored, record)
    attempt = _attempt_of(state, record)
    state = _with_attempt(state, replace(attempt, restored=restored, restored_at=record.at))
    if restored.checkpoint is None:
        return state
    return verified(state, restored.checkpoint.manifest_sha256, record)


def _end(state: RunState, record: Record) -> RunState:
    ended = body_of(AttemptEnded, record)
    _check_reason(record, ended.reason)
    attempt = _attempt_of(state, record)
    after = replace(attempt, ended=ended, ended_seq=record.seq, ended_at=record.at)
    return _without_alerts_of(_with_attempt(state, after), attempt, record)


def _reclassify(state: RunState, record: Record) -> RunState:
    reading = body_of(AttemptReclassified, record)
    _check_reason(record, reading.reason)
    attempt = _attempt_of(state, record)
    state = _with_attempt(
        state, replace(attempt, reclassified=reading, reclassified_seq=record.seq)
    )
    reclassified = _dated(AttemptReclassified, record)
    return replace(state, reclassifications=(*state.reclassifications, reclassified))


def _check_reason(record: Record, reason: str) -> None:
    if reason not in _REASONS:
        raise RecordNewer(
            f"Record {record.seq} ({record.kind}) names the reason {reason!r}, which this version does "
            f"not know: a newer one wrote it, on {record.at:%Y-%m-%dT%H:%M:%SZ}. Update this checkout; "
            "the records before it still hold."
        )


_REASONS = frozenset(reason.value for reason in TerminationReason)


def _open_eval(state: RunState, record: Record) -> RunState:
    opened = body_of(EvalOpened, record)
    evaluation = EvalState(opened=opened, opened_seq=record.seq, opened_at=record.at)
    return replace(state, evals=(*state.evals, evaluation))


def _end_eval(state: RunState, record: Record) -> RunState:
    ended = body_of(EvalEnded, record)

    def closed(evaluation: EvalState) -> EvalState:
        same = (evaluation.opened.eval_id, evaluation.opened.number) == (
            ended.eval_id,
            ended.number,
        )
        if not same or evaluation.ended is not None:
            return evaluation  # the first end counts; a repeated one changes nothing
        return replace(evaluation, ended=ended, ended_seq=record.seq, ended_at=record.at)

    return replace(state, evals=tuple(closed(e) for e in state.evals))


def _dated(body: type[B], record: Record) -> Dated[B]:
    return Dated(
        seq=record.seq,
        at=record.at,
        attempt_id=record.attempt_id,
        body=body_of(body, record),
    )


def _alert(state: RunState, record: Record) -> RunState:
    after = alerts.raised(state.alerts, record)
    if state.finished is not None:  # nothing is left to wait for
        after = alerts.ended(after, record, _IS_FINISHED, lambda each: True)
    return replace(state, alerts=after)


def _finish(state: RunState, record: Record) -> RunState:
    over = alerts.ended(state.alerts, record, _IS_FINISHED, lambda each: True)
    finished = body_of(RunFinished, record)
    return replace(state, finished=finished, finished_at=record.at, alerts=over)


_IS_FINISHED = "The run is finished."

# What ends an alert without an `alert_cleared`, beside the end of the run. One that names no attempt
# concerns the run (its money, say) and outlives its attempts, unless there was none when it was raised.


def _without_alerts_before_the_gang(state: RunState, record: Record) -> RunState:
    """End what was raised while nothing ran: a gang does now."""
    first_seq = state.attempts[0].opened_seq
    over = alerts.ended(
        state.alerts,
        record,
        "A gang was placed.",
        lambda each: each.attempt_id is not None or each.seq < first_seq,
    )
    return replace(state, alerts=over)


def _without_alerts_of(state: RunState, attempt: AttemptState, record: Record) -> RunState:
    """End what was raised about an attempt while it was open: it has ended."""
    over = alerts.ended(
        state.alerts,
        record,
        f"Attempt {attempt.attempt_id} ended.",
        lambda each: each.attempt_id == attempt.attempt_id and each.seq > attempt.opened_seq,
    )
    return replace(state, alerts=over)


def _labelled(labels: Labels, record: Record) -> Labels:
    """Return the labels after a `run_labelled`."""
    body = body_of(RunLabelled, record)
    is_archived = labels.archived_at is not None if body.is_archived is None else body.is_archived
    is_new = is_archived and body.is_archived is not None
    return Labels(
        tags=tuple(sorted({*labels.tags, *body.added} - {*body.removed})),
        name=labels.name if body.called is None else body.called,
        archived_at=record.at if is_new else labels.archived_at if is_archived else None,
        archived_seq=record.seq if is_new else labels.archived_seq,
    )


_APPLIERS: dict[Kind, Callable[[RunState, Record], RunState]] = {
    Kind.ATTEMPT_OPENED: _open,
    Kind.ATTEMPT_SUPERVISED: _supervise,
    Kind.ATTEMPT_PLACED: _place,
    Kind.ATTEMPT_RESTORED: _restore,
    Kind.CHECKPOINT_COMMITTED: commit,
    Kind.ATTEMPT_ENDED: _end,
    Kind.ATTEMPT_RECLASSIFIED: _reclassify,
    Kind.RETRY_REFUSED: lambda s, r: replace(s, refusals=(*s.refusals, _dated(RetryRefused, r))),
    Kind.STOP_REQUESTED: lambda s, r: replace(s, stops=(*s.stops, _dated(StopRequested, r))),
    Kind.CHECKPOINT_VERIFIED: verify,
    Kind.CHECKPOINT_QUARANTINED: decide_checkpoint,
    Kind.CHECKPOINT_SUPERSEDED: decide_checkpoint,
    Kind.CHECKPOINT_DELETED: decide_checkpoint,
    Kind.CHECKPOINT_PINNED: decide_checkpoint,
    Kind.CHECKPOINT_UNPINNED: decide_checkpoint,
    Kind.EVAL_OPENED: _open_eval,
    Kind.EVAL_ENDED: _end_eval,
    Kind.EVAL_WAIVED: lambda s, r: replace(s, waivers=(*s.waivers, _dated(EvalWaived, r))),
    Kind.PROMOTION_DECIDED: lambda s, r: replace(
        s, promotions=(*s.promotions, _dated(PromotionDecided, r))
    ),
    Kind.NOTE: lambda s, r: replace(s, notes=(*s.notes, _dated(Note, r))),
    Kind.ALERT: _alert,
    Kind.ALERT_CLEARED: lambda s, r: replace(s, alerts=alerts.cleared(s.alerts, r)),
    Kind.RUN_FINISHED: _finish,
    Kind.STAGE_JUDGED: lambda s, r: replace(s, judged=_dated(StageJudged, r)),
    Kind.RUN_LABELLED: lambda s, r: replace(s, labels=_labelled(s.labels, r)),
}
