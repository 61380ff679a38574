"""What the manifests of a run's checkpoints name, each read once in a pass."""

from __future__ import annotations

from tracks_dagster.checkpoints.effects.verification import Verified, quarantine
from tracks_dagster.checkpoints.ports import CheckpointReader
from tracks_dagster.checkpoints.retention import ChunkSizes
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.track.errors import CheckpointCorrupt, CheckpointMismatch
from tracks_dagster.track.states.run_state import CheckpointState, RunState

ROUNDS_MAX = 8  # of reading what was committed while the others were read


class Manifests:
    """Reads manifests for one pass. One that is corrupt quarantines its checkpoint, loudly."""

    def __init__(self, tracks: Tracks, reader: CheckpointReader, *, by: str) -> None:
        self._tracks = tracks
        self._reader = reader
        self._by = by
        self._named: dict[str, ChunkSizes] = {}
        self._unreadable: set[str] = set()
        self.corrupt: list[Verified] = []

    def read(self, run_id: str) -> tuple[RunState, dict[str, ChunkSizes]]:
        """Return the run's state, and manifest sha256 → the chunks it names, of all not deleted.

        Missing are those that cannot be read: corrupt, or of another format. The state was read
        after every manifest: one that was deleted meanwhile is not missing, and one that was
        committed meanwhile was read too, unless more came than the bound allows for. Raises
        StoreUnavailable.
        """
        for _ in range(ROUNDS_MAX):
            state = self._tracks.run(run_id)
            unknown = [c for c in state.checkpoints if not c.deleted and not self._is_known(c)]
            if not unknown:
                break
            for checkpoint in unknown:
                self._read(checkpoint)
        there = (c.ref.manifest_sha256 for c in state.checkpoints if not c.deleted)
        return state, {sha256: self._named[sha256] for sha256 in there if sha256 in self._named}

    def _is_known(self, checkpoint: CheckpointState) -> bool:
        sha256 = checkpoint.ref.manifest_sha256
        return sha256 in self._named or sha256 in self._unreadable

    def _read(self, checkpoint: CheckpointState) -> None:
        ref = checkpoint.ref
        try:
            self._named[ref.manifest_sha256] = self._reader.chunk_sizes(ref)
        except CheckpointMismatch:
            self._unreadable.add(ref.manifest_sha256)
        except CheckpointCorrupt as error:
            self._unreadable.add(ref.manifest_sha256)
            if checkpoint.is_resumable:
                told = quarantine(self._tracks, ref, str(error), by=self._by)
                if told.seq is not None:
                    self.corrupt.append(told)
