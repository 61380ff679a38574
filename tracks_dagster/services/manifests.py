"""What the manifests of a run's checkpoints name, each read once in a pass."""

from __future__ import annotations

from collections.abc import Mapping

from tracks_dagster.core.errors import CheckpointCorrupt, CheckpointMismatch
from tracks_dagster.core.ports import CheckpointReader
from tracks_dagster.core.retention import ChunkSizes
from tracks_dagster.core.run_state import RunState
from tracks_dagster.services.tracks import Tracks
from tracks_dagster.services.verification import Verified, quarantine


class Manifests:
    """Reads manifests for one pass. One that is corrupt quarantines its checkpoint, loudly."""

    def __init__(self, tracks: Tracks, reader: CheckpointReader, *, by: str) -> None:
        self._tracks = tracks
        self._reader = reader
        self._by = by
        self._named: dict[str, ChunkSizes] = {}
        self._unreadable: set[str] = set()
        self.corrupt: list[Verified] = []

    def read(self, state: RunState) -> Mapping[str, ChunkSizes]:
        """Return manifest sha256 → the chunks it names, of every checkpoint that is not deleted.

        Missing are those that cannot be read: corrupt, or of another format. Raises StoreUnavailable.
        """
        there = [c for c in state.checkpoints if not c.deleted]
        for checkpoint in there:
            ref = checkpoint.ref
            if ref.manifest_sha256 in self._named or ref.manifest_sha256 in self._unreadable:
                continue
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
        return {
            c.ref.manifest_sha256: self._named[c.ref.manifest_sha256]
            for c in there
            if c.ref.manifest_sha256 in self._named
        }
