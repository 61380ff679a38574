"""Whether the checkpoint that a branch goes on from still holds, told by the track of its own run.

`pins` pins it before the branch is declared, and lets go of it when the branch is finished.
"""

from __future__ import annotations

from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.track.states.checkpoints import CheckpointRef, checkpoint_at
from tracks_dagster.track.states.run_state import RunState


def source_withdrawn(tracks: Tracks, state: RunState) -> str | None:
    """Say why nobody may resume from what the run branched from; None where one may, or it did not.

    That matters to a run without a checkpoint of its own, and to one that is rolled back.
    """
    ref = state.declared.branched_from
    return None if ref is None else lost(tracks.find_run(ref.run_id), ref)


def lost(source: RunState | None, ref: CheckpointRef) -> str | None:
    """Say why a run that branched from `ref` may not go on from it; None where it may.

    A rollback of the source's run, which only leaves it behind, takes nothing from its branches.
    """
    checkpoint = source.checkpoint(ref.manifest_sha256) if source is not None else None
    if checkpoint is not None and checkpoint.holds_for_branches:
        return None
    return withdrawn(source, ref)


def withdrawn(source: RunState | None, ref: CheckpointRef) -> str | None:
    """Say why nothing new may begin at `ref`, and what to do; None where it may."""
    checkpoint = source.checkpoint(ref.manifest_sha256) if source is not None else None
    if checkpoint is not None and checkpoint.is_resumable:
        return None
    what = "is not in that run's track" if checkpoint is None else f"was {checkpoint.status}"
    return (
        f"{checkpoint_at(ref)} (attempt {ref.attempt_id}) {what} and cannot be branched from "
        f"or pinned; `tracks checkpoints list {ref.run_id}` shows others."
    )
