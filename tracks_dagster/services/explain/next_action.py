"""Explain what came after an attempt: who decided what, counting which records, and what to do now."""

from __future__ import annotations

from collections.abc import Iterable

from tracks_dagster.core.names import attempt_key
from tracks_dagster.core.records import Record, format_time
from tracks_dagster.core.run_state import AttemptState
from tracks_dagster.services.explain.explanation import CountedRecord, Next
from tracks_dagster.services.narrate import sentence
from tracks_dagster.services.receipts import RunReceipts


def explain_next(run: RunReceipts, attempt: AttemptState, records: list[Record]) -> Next:
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
    return Next(what="undecided", decided_by=None, decision=run.status.why, counted=())


def what_to_do(run: RunReceipts, attempt: AttemptState) -> str:
    """Tell what a person should do now, in words."""
    state = run.state
    if state.attempt(attempt.attempt_id + 1) is not None:
        following = attempt_key(state.run_id, attempt.attempt_id + 1)
        return f"Nothing: the run went on; `tracks explain {following}` tells how."
    if state.refusal is not None:
        return state.refusal.body.what_to_do
    if state.finished is not None:
        return "Nothing: the run is finished."
    if attempt.is_open:
        return f"Nothing yet: it is open; `tracks status {state.run_id}` shows how far it is."
    return f"See what the run waits for: `tracks status {state.run_id}`. Now: {run.status.why}"


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
