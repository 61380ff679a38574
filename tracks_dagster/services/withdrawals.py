"""What other tracks say against a run's next attempt: its snapshot, and what it branched from.

It is the same for all runs of a burst, so a tick asks for each thing once. What was withdrawn by
somebody else since then is met by the next tick.
"""

from __future__ import annotations

from tracks_dagster.core.bodies import SnapshotRef
from tracks_dagster.core.checkpoints import CheckpointRef
from tracks_dagster.core.run_state import RunState
from tracks_dagster.services.branch_source import source_withdrawn
from tracks_dagster.services.snapshot_quarantine import snapshot_withdrawn
from tracks_dagster.services.tracks import Tracks


class Withdrawals:
    """Asks for each snapshot and each source once: make one for a tick. Safe for several threads,
    which may ask for the same thing at once."""

    def __init__(self, tracks: Tracks) -> None:
        self._tracks = tracks
        self._snapshots: dict[SnapshotRef, str | None] = {}
        self._sources: dict[CheckpointRef, str | None] = {}

    def of_snapshot(self, ref: SnapshotRef) -> str | None:
        """Say why no new attempt may train on `ref`; None where one may."""
        if ref not in self._snapshots:
            self.ask_again(ref)
        return self._snapshots[ref]

    def of_source(self, state: RunState) -> str | None:
        """Say why the run may not go on from what it branched from; None where it may, or did not."""
        ref = state.declared.branched_from
        if ref is None:
            return None
        if ref not in self._sources:
            self._sources[ref] = source_withdrawn(self._tracks, state)
        return self._sources[ref]

    def ask_again(self, ref: SnapshotRef) -> None:
        """Ask for a snapshot about which something was decided in this tick."""
        self._snapshots[ref] = snapshot_withdrawn(self._tracks, ref)
