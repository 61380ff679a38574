"""From states to the ledger's rows about lineage: where attempts ran, what they resumed from, and what
is in quarantine as a source. Pure, as `projection`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from tracks_dagster.ledger.ports import Row
from tracks_dagster.ledger.projection_values import row_of
from tracks_dagster.track.placement import nodes_of
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.states.quarantine_state import QuarantineState, SourceQuarantine
from tracks_dagster.track.states.run_state import AttemptState

ASKED, RESTORED = "asked", "restored"  # how it is known what an attempt resumes from


def node_rows(run_id: str, attempt: AttemptState) -> Iterator[Row]:
    """Yield a row for each node that the attempt was placed on."""
    if attempt.placed is None:
        return
    for node in nodes_of(attempt.placed):
        yield row_of(
            run_id=run_id, attempt_id=attempt.attempt_id, node=node, placed_at=attempt.placed_at
        )


def resume_rows(run_id: str, attempt: AttemptState) -> Iterator[Row]:
    """Yield what the attempt was opened to resume from, and what it restored, each with its time.

    The first holds until the second is known, which may be another (a fallback), or nothing.
    """
    asked, restored = attempt.opened.resume, attempt.restored
    if asked is not None:
        until = attempt.restored_at
        yield _resume_row(run_id, attempt, ASKED, asked, attempt.opened_at, until)
    if restored is not None and restored.checkpoint is not None and attempt.restored_at is not None:
        found = restored.checkpoint
        yield _resume_row(run_id, attempt, RESTORED, found, attempt.restored_at, None)


def quarantine_rows(
    state: QuarantineState, before: QuarantineState | None = None
) -> dict[str, list[Row]]:
    """Return the rows of the track of quarantines; `before` is an earlier state, taken in already."""
    known = set(before.quarantines) if before is not None else set()
    return {
        "source_quarantines": [
            _quarantine_row(each) for each in state.quarantines if each not in known
        ]
    }


def _resume_row(
    run_id: str,
    attempt: AttemptState,
    known_as: str,
    source: CheckpointRef,
    since: datetime,
    until: datetime | None,
) -> Row:
    return row_of(
        run_id=run_id,
        attempt_id=attempt.attempt_id,
        known_as=known_as,
        source_run_id=source.run_id,
        source_attempt_id=source.attempt_id,
        source_step=source.step,
        source_manifest_sha256=source.manifest_sha256,
        since_at=since,
        until_at=until,
    )


def _quarantine_row(quarantine: SourceQuarantine) -> Row:
    body, release = quarantine.body, quarantine.release
    return row_of(
        seq=quarantine.seq,
        source=body.source,
        called=body.called,
        decided_by=body.by,
        why=body.why,
        quarantined_at=quarantine.at,
        released_at=release.at if release else None,
        released_by=release.body.by if release else None,
        released_why=release.body.why if release else None,
    )
