"""Where snapshots come from: what the adapters implement."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from tracks_dagster.track.bodies import DatasetDeclared
from tracks_dagster.track.states.dataset_state import PreparedSnapshot


class Datasets(Protocol):
    """The datasets that snapshots are made of. Writes nothing outside a folder for its own use."""

    def describe(self, dataset: str) -> DatasetDeclared:
        """Return what the dataset is; raises UnknownRun naming those that exist."""
        ...

    def prepare(
        self, dataset: str, source: Path | None = None
    ) -> AbstractContextManager[PreparedSnapshot]:
        """Read, check and shard what a snapshot would hold; the shards live until the exit.

        source: a file or folder of a person's own, None for what ships. The same data gives the
        same shards. Raises InvalidInput when it cannot be read as this dataset, DataRejected
        naming the bad rows.
        """
        ...
