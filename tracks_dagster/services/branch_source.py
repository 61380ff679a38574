"""Whether the checkpoint that a branch goes on from still holds, told by the track of its own run.

`pins` pins it before the branch is declared, and lets go of it when the branch is finished.
"""

from __future__ import annotations

from tracks_dagster.core.checkpoints import CheckpointRef, checkpoint_at
from tracks_dagster.core.run_state import RunState
from tracks_dagster.services.tracks import Tracks


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
        f"{checkpoint_at(ref)} (attempt {ref.attempt_id}) {what} and cannot be branched from "
        f"or pinned; `tracks checkpoints list {ref.run_id}` shows others."
    )
