"""What a decision says: the limits it counted, the records behind them, and what comes next. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tracks_dagster.retry.limits import Limit
from tracks_dagster.retry.remediation import Remedied
from tracks_dagster.retry.rollback import Rollback
from tracks_dagster.track.states.checkpoints import CheckpointRef, checkpoint_at
from tracks_dagster.track.states.run_state import AttemptState, RunState

COUNTED_SEQS_MAX = 100  # named in a record of at most 16 KiB; the newest ones
NAMED_SEQS_MAX = 10  # in its words


def plan_words(
    state: RunState,
    remedied: Remedied,
    failed: AttemptState,
    resume: CheckpointRef | None,
    rollback: Rollback | None,
) -> str:
    """Return where the next attempt begins and what is changed, in one or a few sentences."""
    changes = ", ".join(f"{c.key} {c.before} → {c.after}" for c in remedied.changes)
    if resume is None:
        start = "starts afresh" if rollback else f"starts afresh: {_why_afresh(state)}"
    elif resume.run_id == state.run_id:
        start = f"resumes from step {resume.step} of attempt {resume.attempt_id}"
    else:
        start = f"resumes from {checkpoint_at(resume)}, which the run branched from"
    changed = f"with {changes}" if changes else "with nothing changed"
    back = f"{rollback.words} " if rollback else ""
    return f"{back}Attempt {failed.attempt_id + 1} {start}, {changed}."


def _why_afresh(state: RunState) -> str:
    if not state.checkpoints:
        return "no checkpoint was committed"
    return f"none of its {len(state.checkpoints)} checkpoints may be resumed from any more"


def joined(counted: Sequence[Limit], *, named: bool = False) -> str:
    """Return the limits in words. named: each with the records that it counted."""
    return "; ".join(
        f"{limit.words}{_records(limit.seqs)}" if named else limit.words for limit in counted
    )


def _records(seqs: tuple[int, ...]) -> str:
    """Return the newest of these records for people, for example " (records 5 and 12)"."""
    if not seqs:
        return ""
    *others, last = [str(seq) for seq in seqs[-NAMED_SEQS_MAX:]]
    if not others:
        return f" (record {last})"
    before = f"{len(seqs) - NAMED_SEQS_MAX} before, " if len(seqs) > NAMED_SEQS_MAX else ""
    return f" (records {before}{', '.join(others)} and {last})"


def seqs_of(
    failed: AttemptState,
    counted: Sequence[Limit],
    quarantined: tuple[int, ...] = (),
) -> tuple[int, ...]:
    """Return the records counted, in order: the end that is decided on, those of the limits, and the
    quarantines of a rollback."""
    seqs = {*quarantined, *(seq for limit in counted for seq in limit.seqs)}
    if failed.ended_seq is not None:
        seqs.add(failed.ended_seq)
    return tuple(sorted(seqs))[-COUNTED_SEQS_MAX:]
