"""What records about checkpoints change in the state of a run: the part of `run_fold` about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from tracks_dagster.track.bodies import CheckpointCommitted, CheckpointDecision, CheckpointVerified
from tracks_dagster.track.body_json import body_of
from tracks_dagster.track.records import Json, Kind, Record
from tracks_dagster.track.states.checkpoints import object_prefix
from tracks_dagster.track.states.run_state import CheckpointState, RunState


def objection_to_ref(run_id: str, attempt_id: int, launch_id: Json, ref: Json) -> str | None:
    """Say why a commit may not name `ref`: it may only name what its own launch wrote."""
    if not isinstance(ref, Mapping):
        return None  # the body's own reading says what is missing
    expected = object_prefix(run_id, attempt_id, str(launch_id), ref.get("step", 0))
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
