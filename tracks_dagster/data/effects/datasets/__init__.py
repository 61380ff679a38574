"""The datasets that ship, behind `ports.Datasets`: where their data comes from and what it must be."""

from __future__ import annotations

from pathlib import Path

from tracks_dagster.data.ports import Datasets


def open_datasets(work: Path) -> Datasets:
    """Return the datasets; shards are prepared in short-lived folders below `work`.

    Touches nothing; the libraries that read and check data are loaded at the first snapshot.
    """
    from tracks_dagster.data.effects.datasets.catalog import ShippedDatasets

    return ShippedDatasets(work)
