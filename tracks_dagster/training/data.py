"""Reads a committed snapshot from the object store, verified; nothing here imports torch."""

from __future__ import annotations

import json

import pyarrow as pa
from pyarrow import parquet

from tracks_dagster.track.bodies import SnapshotRef
from tracks_dagster.track.errors import DataRejected
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json, sha256_hex
from tracks_dagster.track.states.dataset_state import manifest_key


def load_snapshot(store: ObjectStore, snapshot: SnapshotRef) -> pa.Table:
    """Return all rows of a snapshot, shards in the order of its manifest, as one table in memory.

    Raises DataRejected when the manifest or a shard is missing or does not have the sha256 that
    names it: training never sees other bytes than the record names.
    """
    key = manifest_key(snapshot.dataset, snapshot.snapshot_id)
    manifest: Json = json.loads(_read(store, key, snapshot.snapshot_id))
    tables = [
        parquet.read_table(pa.BufferReader(_read(store, shard["key"], shard["sha256"])))
        for shard in manifest["shards"]
    ]
    table = pa.concat_tables(tables)
    if table.num_rows != manifest["row_count"]:
        raise DataRejected(
            f"Snapshot {snapshot.snapshot_id} of {snapshot.dataset} has {table.num_rows} rows; "
            f"its manifest says {manifest['row_count']}."
        )
    return table


def _read(store: ObjectStore, key: str, expected: str) -> bytes:
    data = store.get(key)
    found = None if data is None else sha256_hex(data)
    if data is None or found != expected:
        state = "is missing" if data is None else f"has sha256 {found}"
        raise DataRejected(
            f"Cannot load the snapshot: {key} {state}; expected sha256 {expected}. "
            "Make the snapshot again; nothing was trained on these bytes."
        )
    return data
