"""From where an attempt began, and the records of what a fallback passed over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tracks_dagster.attempts.continuity import Continuity
from tracks_dagster.review.effects.explain.explanation import Resumed
from tracks_dagster.review.effects.narrate import sentence
from tracks_dagster.track.records import Kind, Record
from tracks_dagster.track.states.run_state import AttemptState


def explain_began(
    attempt: AttemptState, records: Sequence[Record], continuity: Continuity | None
) -> Resumed:
    """Return what `attempt` resumed from; records: the whole track of its run."""
    return Resumed(
        step=attempt.resumed_step,
        checkpoint=attempt.resumed_from,
        fallback_why=attempt.restored.fallback_why if attempt.restored else None,
        passed_over=tuple(f"record {r.seq}: {sentence(r)}" for r in _passed_over(attempt, records)),
        allows_environment_change=attempt.opened.allows_environment_change,
        continuity=continuity,
    )


def _passed_over(attempt: AttemptState, records: Sequence[Record]) -> Iterator[Record]:
    """Yield the quarantines that the attempt made itself, and that of what it was to resume from."""
    asked = attempt.opened.resume
    for record in records[attempt.opened_seq :]:
        if record.kind is not Kind.CHECKPOINT_QUARANTINED:
            continue
        is_asked = asked is not None and record.body["manifest_sha256"] == asked.manifest_sha256
        was_before = attempt.restored_at is None or record.at <= attempt.restored_at
        if was_before and (is_asked or record.attempt_id == attempt.attempt_id):
            yield record
