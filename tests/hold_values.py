"""Holds as other tracks would put them on a run."""

from __future__ import annotations

from tests.bodies import BEGIN
from tracks_dagster.holds.hold import (
    Hold,
    HoldAct,
    called_checkpoint,
    key_of_checkpoint,
    key_of_run,
    key_of_snapshot,
    loss,
)
from tracks_dagster.track.bodies import SnapshotRef
from tracks_dagster.track.names import QUARANTINES_TRACK
from tracks_dagster.track.states.checkpoints import CheckpointRef

SOURCE = "node:n-1"  # what is in quarantine, by ann


def in_quarantine(what: CheckpointRef | SnapshotRef | str) -> Hold:
    """Return the hold on a checkpoint or a run (by its id) that descends from SOURCE, or on a snapshot,
    which is a source itself."""
    if isinstance(what, CheckpointRef):
        key, called, source = key_of_checkpoint(what), called_checkpoint(what), SOURCE
    elif isinstance(what, SnapshotRef):
        key = key_of_snapshot(what)
        called = source = f"snapshot:{what.dataset}@{what.snapshot_id[:12]}"
    else:
        key, called, source = key_of_run(what), what, SOURCE
    return Hold(
        what=key,
        called=called,
        act=HoldAct.QUARANTINE,
        why="it flips bits",
        by="ann",
        at=BEGIN,
        track=QUARANTINES_TRACK,
        seq=3,
        source=source,
    )


def lost(ref: CheckpointRef) -> Hold:
    """Return the hold on a branch whose source its own run does not know any more."""
    found = loss(None, ref)
    assert found is not None
    return found
