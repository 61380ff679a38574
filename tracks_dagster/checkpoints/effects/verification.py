"""Read checkpoints in full and record what came of it: verified, or quarantined.

A quarantine stands in the track before anybody could resume from the damaged bytes, and says what
was found, where, and which checkpoint a resume takes instead.
"""

from __future__ import annotations

from dataclasses import dataclass

from tracks_dagster.checkpoints.ports import CheckpointReader
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.track.bodies import CheckpointDecision, CheckpointVerified
from tracks_dagster.track.errors import CheckpointCorrupt
from tracks_dagster.track.records import Draft, Kind
from tracks_dagster.track.states.checkpoints import CheckpointRef, resume_target
from tracks_dagster.track.states.run_state import RunState

WHY_CHARACTERS_MAX = 4000  # of a quarantine: a record is at most 16 KiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What reading one checkpoint in full came to.

    total_bytes: None when it is corrupt, or was deleted while it was read.
    problem: None when every byte was right, else the object, the hash expected and the hash found.
    fallback: what a resume takes instead of a corrupt one; None when nothing is left.
    seq: the record that says so; None when it was quarantined or deleted in the meantime.
    """

    ref: CheckpointRef
    total_bytes: int | None
    problem: str | None
    fallback: CheckpointRef | None
    seq: int | None

    @property
    def status(self) -> str:
        """One word for people: corrupt, deleted (while it was read) or verified."""
        if self.problem is not None:
            return "corrupt"
        return "deleted" if self.total_bytes is None else "verified"


def verify(tracks: Tracks, reader: CheckpointReader, ref: CheckpointRef, *, by: str) -> Verified:
    """Read every byte of a committed checkpoint and record the result.

    Reads whatever was recorded before: bytes can rot. Safe to repeat. Raises StoreUnavailable when it
    cannot be read now, CheckpointMismatch when only another version can read it; neither says
    anything about its bytes, so nothing is recorded.
    """
    try:
        total_bytes = reader.verify(ref)
    except CheckpointCorrupt as error:
        return quarantine(tracks, ref, str(error), by=by)
    body = CheckpointVerified(manifest_sha256=ref.manifest_sha256, by=by, total_bytes=total_bytes)
    record = tracks.note_run(ref.run_id, tracks.draft(Kind.CHECKPOINT_VERIFIED, body))
    return Verified(ref=ref, total_bytes=total_bytes, problem=None, fallback=None, seq=record.seq)


def quarantine(tracks: Tracks, ref: CheckpointRef, problem: str, *, by: str) -> Verified:
    """Record that nobody may resume from `ref`; one that is quarantined or deleted stays as it is."""

    def choose(state: RunState | None) -> Draft | None:
        checkpoint = state.checkpoint(ref.manifest_sha256) if state is not None else None
        if state is None or checkpoint is None or not checkpoint.is_resumable:
            return None
        body = CheckpointDecision(
            manifest_sha256=ref.manifest_sha256,
            by=by,
            why=f"{problem} {fallback_words(fallback_without(state, ref))}"[:WHY_CHARACTERS_MAX],
        )
        return tracks.draft(Kind.CHECKPOINT_QUARANTINED, body)

    record = tracks.decide_run(ref.run_id, choose)
    state = tracks.run(ref.run_id)
    checkpoint = state.checkpoint(ref.manifest_sha256)
    if checkpoint is not None and checkpoint.deleted:  # while it was read: it is not damaged
        return Verified(ref=ref, total_bytes=None, problem=None, fallback=None, seq=None)
    return Verified(
        ref=ref,
        total_bytes=None,
        problem=problem,
        fallback=fallback_without(state, ref),
        seq=record.seq if record is not None else None,
    )


def fallback_without(state: RunState, ref: CheckpointRef) -> CheckpointRef | None:
    """Return what a resume takes when it may not take `ref`: of its own run, or its branch's source."""
    others = [other for other in state.resumable if other != ref]
    return resume_target(others) if others else state.declared.branched_from


def fallback_words(fallback: CheckpointRef | None) -> str:
    """Say what a resume takes now."""
    if fallback is None:
        return "No other checkpoint is left: a resume starts afresh, from step 0."
    return (
        f"A resume falls back to step {fallback.step} of attempt {fallback.attempt_id} of "
        f"{fallback.run_id}, manifest {fallback.manifest_sha256}."
    )
