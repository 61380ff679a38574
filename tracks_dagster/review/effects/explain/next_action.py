"""Explain what came after an attempt: who decided what, counting which records, and what to do now."""

from __future__ import annotations

from collections.abc import Iterable

from tracks_dagster.holds.hold import CleanStart, HoldAct
from tracks_dagster.review.effects.explain.explanation import CountedRecord, Next
from tracks_dagster.review.effects.explain.reading import Break
from tracks_dagster.review.effects.narrate import sentence
from tracks_dagster.review.effects.receipts import RunReceipts
from tracks_dagster.track.names import attempt_key
from tracks_dagster.track.records import Record, format_time
from tracks_dagster.track.states.lifecycle import RunLifecycle
from tracks_dagster.track.states.run_state import AttemptState

NOT_KNOWN = "not known"  # what the record breaks before


def explain_next(
    run: RunReceipts, attempt: AttemptState, records: list[Record], broken: Break | None
) -> Next:
    """Return what was decided once the attempt had ended, with the records that were counted."""
    state = run.state
    successor = state.attempt(attempt.attempt_id + 1)
    if successor is not None:
        return Next(
            what="retried",
            decided_by=successor.opened.decided_by,
            decision=successor.opened.decision,
            counted=_counted(records, successor.opened.counted_seqs),
        )
    if state.finished is not None:
        return Next(
            what="finished",
            decided_by=state.finished.decided_by,
            decision=f"{state.finished.why} (stop cause: {state.finished.stop_cause})",
            counted=(),
        )
    if state.refusal is not None:
        return Next(
            what="refused",
            decided_by=state.refusal.body.decided_by,
            decision=state.refusal.body.decision,
            counted=_counted(records, state.refusal.body.counted_seqs),
        )
    if broken is not None:
        decision = f"what came after record {broken.seq - 1} cannot be read"
        return Next(what=NOT_KNOWN, decided_by=None, decision=decision, counted=())
    return Next(what="undecided", decided_by=None, decision=run.status.why, counted=())


def what_to_do(
    run: RunReceipts, attempt: AttemptState, broken: Break | None, start: CleanStart
) -> str:
    """Say what a person should do now; first of all about a quarantine that would refuse a retry."""
    to_do, state = _to_do(run, attempt, broken), run.state
    asks_nothing = attempt is not state.last_attempt and state.refusal is None
    is_held = start.hold is not None and start.hold.act is HoldAct.QUARANTINE
    if (
        not (is_held and start.words)
        or broken is not None
        or asks_nothing
        or "tracks release" in to_do
    ):
        return to_do
    return f"First the quarantine, which would refuse a retry: {start.words} Then: {to_do}"


def _to_do(run: RunReceipts, attempt: AttemptState, broken: Break | None) -> str:
    state = run.state
    if broken is not None:
        return f"First{'' if broken.is_newer else ' mend the record'}: {broken.to_do}"
    if state.attempt(attempt.attempt_id + 1) is not None:
        return _went_on(run, attempt.attempt_id + 1)
    if state.refusal is not None:
        return state.refusal.body.what_to_do
    if state.finished is not None:
        return "Nothing: the run is finished."
    if attempt.is_open:
        return f"Nothing yet: it is open; `tracks status {state.run_id}` shows how far it is."
    return _undecided(run)


def _undecided(run: RunReceipts) -> str:
    if run.status.state == RunLifecycle.WAITING:  # for a person
        return run.status.why
    return f"Nothing yet; `tracks status {run.state.run_id}` shows what it waits for."


def _went_on(run: RunReceipts, following_id: int) -> str:
    """Say that the run went on, and what is to be done where it did not get far."""
    state, following = run.state, attempt_key(run.state.run_id, following_id)
    went_on = f"the run went on; `tracks explain {following}` tells how."
    newest = state.attempts[-1]
    if state.refusal is None or state.finished is not None or newest.is_open:
        return f"Nothing: {went_on}"
    return (
        f"Here nothing: {went_on} But attempt {newest.attempt_id} ended as {newest.reason} and is not "
        f"retried. {state.refusal.body.what_to_do}"
    )


def _counted(records: list[Record], seqs: Iterable[int]) -> tuple[CountedRecord, ...]:
    return tuple(
        CountedRecord(
            seq=seq,
            kind=records[seq].kind.value,
            at=format_time(records[seq].at),
            sentence=sentence(records[seq]),
        )
        for seq in seqs
        if seq < len(records)
    )
