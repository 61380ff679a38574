"""Make and find data snapshots: checked first, then stored, then committed by one record.

A snapshot exists if and only if its `snapshot_committed` record does. Its shards and manifest are
named by their content, so that a maker that dies on the way leaves only objects nobody names. What
rows must look like is `data.effects.datasets`'s to know.
"""

from __future__ import annotations

from pathlib import Path

from tracks_dagster.data.ports import Datasets
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.track.bodies import SnapshotCommitted, SnapshotRef
from tracks_dagster.track.errors import DataRejected, InvalidInput, UnknownRun
from tracks_dagster.track.names import snapshot_asset
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Draft, Kind
from tracks_dagster.track.states.dataset_state import (
    DatasetState,
    PreparedSnapshot,
    SnapshotState,
    find_by_prefix,
    manifest,
    manifest_key,
    shard_key,
    snapshot_id,
)


def make_snapshot(
    tracks: Tracks,
    datasets: Datasets,
    dataset: str,
    *,
    source: Path | None = None,
    dagster_run_id: str | None = None,
) -> SnapshotCommitted:
    """Commit a snapshot of the data as it is now, and return its record's body.

    Idempotent and safe from two processes: the same data finds the snapshot that is there, and
    writes no second record. With nothing written, raises InvalidInput when it cannot be read as this
    dataset, DataRejected naming the bad rows.
    """
    with datasets.prepare(dataset, source) as prepared:
        body = _store(tracks.store, dataset, prepared, source, dagster_run_id)
    _declare(tracks, datasets, dataset)
    draft = tracks.draft(Kind.SNAPSHOT_COMMITTED, body)
    tracks.decide_dataset(dataset, lambda state: _unless_known(state, draft, body))
    committed = _known(tracks.find_dataset(dataset), body)
    return committed.body if committed is not None else body


def find_snapshot(tracks: Tracks, dataset: str, snapshot_id: str | None = None) -> SnapshotRef:
    """Return the newest usable snapshot of `dataset`, or the one whose id begins with the given.

    Raises UnknownRun when there is none, InvalidInput when the id is ambiguous or the snapshot is
    quarantined.
    """
    state = tracks.find_dataset(dataset)
    if state is None or not state.snapshots:
        raise UnknownRun(
            f"There is no snapshot of dataset {dataset!r}; materialize the asset "
            f"{snapshot_asset(dataset)!r} in the UI, or let `tracks run` make it."
        )
    found = state.newest_usable if snapshot_id is None else find_by_prefix(state, snapshot_id)
    if found is None:
        newest = state.snapshots[-1]
        raise InvalidInput(
            f"Every snapshot of {dataset} is quarantined, the newest, {newest.body.snapshot_id[:12]}, "
            f"because: {newest.quarantined_why}. Make one of corrected data, or release one: "
            f"{_release(dataset, newest)}."
        )
    if found.quarantined_why is not None:
        raise InvalidInput(
            f"Snapshot {found.body.snapshot_id} of {dataset} is quarantined "
            f"({found.quarantined_why}); use another one, or release it with "
            f"{_release(dataset, found)}."
        )
    return SnapshotRef(dataset=dataset, snapshot_id=found.body.snapshot_id)


def _release(dataset: str, snapshot: SnapshotState) -> str:
    return f'`tracks release snapshot:{dataset}@{snapshot.body.snapshot_id[:12]} --why "…"`'


def _store(
    store: ObjectStore,
    dataset: str,
    prepared: PreparedSnapshot,
    source: Path | None,
    dagster_run_id: str | None,
) -> SnapshotCommitted:
    """Make shards and manifest durable, in this order, and return the body that commits them."""
    for shard in prepared.shards:
        store.put(shard_key(dataset, shard.sha256), shard.path.read_bytes())
    written = manifest(dataset, prepared)
    key = manifest_key(dataset, snapshot_id(written))
    store.put(key, written)
    return SnapshotCommitted(
        dataset=dataset,
        snapshot_id=snapshot_id(written),
        manifest_key=key,
        row_count=prepared.row_count,
        total_bytes=prepared.total_bytes,
        shard_count=len(prepared.shards),
        logical_sha256=prepared.logical_sha256,
        source=prepared.source if source is None else f"{prepared.source}: {source.name}",
        checks=prepared.checks,
        dagster_run_id=dagster_run_id,
    )


def _declare(tracks: Tracks, datasets: Datasets, dataset: str) -> None:
    draft = tracks.draft(Kind.DATASET_DECLARED, datasets.describe(dataset))
    tracks.decide_dataset(dataset, lambda state: draft if state is None else None)


def _unless_known(
    state: DatasetState | None, draft: Draft, body: SnapshotCommitted
) -> Draft | None:
    """Commit what is new; raises DataRejected when this very data was quarantined."""
    known = _known(state, body)
    if known is not None and known.quarantined_why is not None:
        raise DataRejected(
            f"This data of {body.dataset} is snapshot {body.snapshot_id}, which is quarantined: "
            f"{known.quarantined_why}. Correct the source, or release the snapshot."
        )
    return None if known is not None else draft


def _known(state: DatasetState | None, body: SnapshotCommitted) -> SnapshotState | None:
    return state.snapshot(body.snapshot_id) if state is not None else None
