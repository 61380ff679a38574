"""What other tracks say against a run's next attempt: its snapshot, what it branched from, and what is
in quarantine.

It is the same for all runs of a burst, so a tick asks for each thing once. What was withdrawn by
somebody else since then is met by the next tick.
"""

from __future__ import annotations

from tracks_dagster.holds.clean_start import Withheld
from tracks_dagster.holds.effects.branch_source import source_withdrawn
from tracks_dagster.holds.effects.clean_starts import withheld_of
from tracks_dagster.holds.effects.quarantines import Quarantines
from tracks_dagster.holds.effects.snapshot_quarantines import snapshot_withdrawn
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.track.bodies import SnapshotRef
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.states.run_state import RunState


class Withdrawals:
    """Asks for each snapshot and each source once: make one for a tick. Safe for several threads,
    which may ask for the same thing at once."""

    def __init__(self, tracks: Tracks) -> None:
        self._tracks = tracks
        self._snapshots: dict[SnapshotRef, str | None] = {}
        self._sources: dict[CheckpointRef, str | None] = {}
        self._quarantines = Quarantines(tracks)

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

    def of_lineage(self, state: RunState) -> Withheld:
        """Say what the run's next attempt may not build upon: sources in quarantine."""
        return withheld_of(self._quarantines, state)

    def ask_again(self, ref: SnapshotRef) -> None:
        """Ask for a snapshot about which something was decided in this tick."""
        self._quarantines.ask_again()
        self._snapshots[ref] = snapshot_withdrawn(self._tracks, ref)
