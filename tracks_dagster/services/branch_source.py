"""The checkpoint that a branch goes on from, in the track of its own run: pinned, and whether it holds.

It is pinned before the branch is declared. A caller killed in between leaves a pin that names the run
that was to come, and the same command finds it.
"""

from __future__ import annotations

from tracks_dagster.core.bodies import CheckpointDecision
from tracks_dagster.core.checkpoints import CheckpointRef, checkpoint_at
from tracks_dagster.core.errors import InvalidInput
from tracks_dagster.core.records import Draft, Kind
from tracks_dagster.core.run_state import RunState
from tracks_dagster.services.pins import branch_of
from tracks_dagster.services.tracks import Tracks


def pin_source(tracks: Tracks, ref: CheckpointRef, run_id: str, *, by: str) -> None:
    """Pin `ref` in its own run's track for the branch `run_id`: what is pinned is not deleted.

    Idempotent. Raises InvalidInput when it was withdrawn meanwhile.
    """
    pin = branch_of(run_id)
    body = CheckpointDecision(
        manifest_sha256=ref.manifest_sha256, by=by, why=f"{run_id} branches from it.", pin=pin
    )
    draft = tracks.draft(Kind.CHECKPOINT_PINNED, body)

    def choose(state: RunState | None) -> Draft | None:
        why = withdrawn(state, ref)
        if why is not None:
            raise InvalidInput(why)
        checkpoint = state.checkpoint(ref.manifest_sha256) if state is not None else None
        return None if checkpoint is not None and pin in checkpoint.pins else draft

    tracks.decide_run(ref.run_id, choose)


def source_withdrawn(tracks: Tracks, state: RunState) -> str | None:
    """Say why the next attempt may not resume from what the run branched from; None where it may.

    None as well where it resumes from a checkpoint of its own, or begins afresh.
    """
    ref = state.resumes_from
    if ref is None or ref.run_id == state.run_id:
        return None
    return withdrawn(tracks.find_run(ref.run_id), ref)


def withdrawn(source: RunState | None, ref: CheckpointRef) -> str | None:
    """Say why nobody may resume from `ref`, and what to do; None where one may."""
    checkpoint = source.checkpoint(ref.manifest_sha256) if source is not None else None
    if checkpoint is not None and checkpoint.is_resumable:
        return None
    what = "is not in that run's track" if checkpoint is None else f"was {checkpoint.status}"
    return (
        f"{checkpoint_at(ref)} (attempt {ref.attempt_id}) {what} and cannot be branched from; "
        f"`tracks checkpoints list {ref.run_id}` shows others for `tracks run --from`."
    )
