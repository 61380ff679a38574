"""Reading committed checkpoints without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tracks_dagster.track.states.checkpoints import CheckpointRef


class CheckpointReader(Protocol):
    """Reads committed checkpoints of one store, without torch.

    Both raise CheckpointCorrupt naming the object, the hash expected and the hash found;
    CheckpointMismatch for a manifest of another format, whose bytes are right; StoreUnavailable.
    """

    def verify(self, ref: CheckpointRef) -> int:
        """Read every byte, check every hash, and return how many bytes there are."""
        ...

    def chunk_sizes(self, ref: CheckpointRef) -> Mapping[str, int]:
        """Return the chunks that its manifest names: key → size in bytes. Reads only the manifest."""
        ...
