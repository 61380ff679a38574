"""Committed checkpoints behind `ports.CheckpointReader`: for services, which know no manifest."""

from __future__ import annotations

from collections.abc import Mapping

from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.training.saves.verifying import read_manifest, verify_checkpoint


class StoredCheckpoints:
    """Implements `ports.CheckpointReader` over one store. Imports no torch."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def verify(self, ref: CheckpointRef) -> int:
        return verify_checkpoint(self._store, ref)

    def chunk_sizes(self, ref: CheckpointRef) -> Mapping[str, int]:
        return {chunk.key: chunk.size_bytes for chunk in read_manifest(self._store, ref).chunks}
