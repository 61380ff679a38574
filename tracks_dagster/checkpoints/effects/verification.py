"""Read checkpoints in full and record the result: verified, or quarantined.

A quarantine is in the track before anybody could resume from the damaged bytes. It names what was
found, where, and which checkpoint a resume takes instead.

Also reads the checkpoint that a retry's decision waits for (`read_proof`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from tracks_dagster.checkpoints.ports import CheckpointReader
from tracks_dagster.ledger.deciding import Wait
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.retry.decision import Refuse
from tracks_dagster.retry.policy import RetryPolicy
from tracks_dagster.track.bodies import Alert, CheckpointDecision, CheckpointVerified
from tracks_dagster.track.errors import CheckpointCorrupt, CheckpointMismatch, StoreError
from tracks_dagster.track.names import ALERT_CHECKPOINT_UNREAD, COLLECT_CHECKPOINTS_JOB
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Draft, Kind
from tracks_dagster.track.states.checkpoints import CheckpointRef, checkpoint_at, resume_target
from tracks_dagster.track.states.run_state import RunState

WHY_CHARACTERS_MAX = 4000  # of a quarantine: a record is at most 16 KiB
READ_BYTES_MAX = 256 * 1024 * 1024  # of a checkpoint that a tick reads by itself: a second or two
UNREAD_S_MAX = 3600.0  # from the attempt's end on; the collector comes by every 15 minutes
ERROR_CHARACTERS_MAX = 500  # of a reader's own words, in an alert or a refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """The result of reading one checkpoint in full.

    total_bytes: None when it is corrupt, or was deleted while it was read.
    problem: None when every byte was right, else the object, the hash expected and the hash found.
    fallback: what a resume takes instead of a corrupt one; None when nothing is left.
    seq: of the record of it; None when it was quarantined or deleted in the meantime.
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
    cannot be read now, CheckpointMismatch when only another version can read it; neither shows
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
            why=f"{problem} {describe_fallback(fallback_without(state, ref))}"[:WHY_CHARACTERS_MAX],
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


def describe_fallback(fallback: CheckpointRef | None) -> str:
    """Return a sentence about what a resume takes now."""
    if fallback is None:
        return "No other checkpoint is left: a resume starts afresh, from step 0."
    return (
        f"A resume falls back to step {fallback.step} of attempt {fallback.attempt_id} of "
        f"{fallback.run_id}, manifest {fallback.manifest_sha256}."
    )


# --- the checkpoint whose bytes decide whether a run may be retried --------------------------------
#
# A tick reads what it can read in a second or two. A larger checkpoint is read by the job that collects
# checkpoints, before anything else that it does. Nobody waits for either in silence: after an hour a
# person gets one alert. What this version can never read ends in a refusal; its bytes are right, and
# stay.


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """Why a checkpoint was not read. is_lasting: no later try of this version can read it."""

    words: str
    is_lasting: bool = False


def read_proof(
    tracks: Tracks, reader: CheckpointReader, state: RunState, ref: CheckpointRef, *, by: str
) -> Unread | None:
    """Read a checkpoint and record whether it is right; return why it was not read, or None."""
    checkpoint = state.checkpoint(ref.manifest_sha256)
    if checkpoint is not None and checkpoint.body.total_bytes > READ_BYTES_MAX:
        return Unread(
            words=f"It has {checkpoint.body.total_bytes} bytes, more than a sensor reads: the job "
            f"{COLLECT_CHECKPOINTS_JOB} reads it first of all when it runs next, or "
            f"`tracks checkpoints verify {state.run_id} --step {ref.step}` does now."
        )
    try:
        verify(tracks, reader, ref, by=by)
    except CheckpointMismatch as error:
        return unreadable(error)
    except StoreError as error:
        return Unread(
            words=f"They could not be read, which is tried again: {error}"[:ERROR_CHARACTERS_MAX]
        )
    return None


def unreadable(error: CheckpointMismatch) -> Unread:
    """Return why a checkpoint of another format was not read."""
    return Unread(words=str(error)[:ERROR_CHARACTERS_MAX], is_lasting=True)


def without_proof(state: RunState, wait: Wait, unread: Unread, now: datetime) -> Wait | Refuse:
    """Return what follows while the deciding checkpoint is not read: a wait, with one alert after an
    hour, or a refusal where no wait would help."""
    failed, ref = state.attempts[-1], wait.verify
    if unread.is_lasting and ref is not None:
        return Refuse(
            reason=failed.reason or TerminationReason.UNKNOWN,
            limit="checkpoint",
            decision=f"{wait.why} This version cannot read them: {unread.words}",
            what_to_do=(
                f"Update this checkout to the version that wrote {checkpoint_at(ref)}; "
                f'`tracks retry {state.run_id} --why "…"` resumes the run in any case.'
            ),
            counted_seqs=() if failed.ended_seq is None else (failed.ended_seq,),
        )
    why = f"{wait.why} {unread.words}"
    waited_s = (now - (failed.ended_at or failed.opened_at)).total_seconds()
    if waited_s < UNREAD_S_MAX or _was_alerted(state, failed.ended_seq or 0):
        return replace(wait, why=why)
    text = f"Nobody has read a checkpoint that a retry waits for, for {waited_s:.0f} s: {why}"
    return replace(wait, why=why, alert=Alert(rule=ALERT_CHECKPOINT_UNREAD, text=text))


def _was_alerted(state: RunState, since_seq: int) -> bool:
    return any(a.body.rule == ALERT_CHECKPOINT_UNREAD and a.seq > since_seq for a in state.alerts)


def refusal_of(
    tracks: Tracks, state: RunState, decision: Refuse, *, by: str, policy: RetryPolicy
) -> Draft:
    """Return the record that a refusal is."""
    refused = decision.refused(decided_by=by, policy_version=policy.version)
    return tracks.draft(Kind.RETRY_REFUSED, refused, attempt_id=len(state.attempts))
