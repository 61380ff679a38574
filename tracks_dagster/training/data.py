"""Reads a committed snapshot of rows from the object store, verified; nothing here imports torch.

A snapshot of files is `stores.local_files`'s.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from tracks_dagster.stores.local_files import local_files, read_verified
from tracks_dagster.track.bodies import SnapshotRef
from tracks_dagster.track.errors import DataRejected, InvalidInput
from tracks_dagster.track.json_text import SNAPSHOT_BYTES_MAX, parse_json
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.dataset_state import manifest_key
from tracks_dagster.track.states.files_manifest import is_files_manifest


def load_snapshot(store: ObjectStore, snapshot: SnapshotRef) -> pa.Table:
    """Return all rows of a snapshot, shards in the order of its manifest, as one table in memory.

    Raises DataRejected when the manifest or a shard is missing or does not have the sha256 that
    names it: training never sees other bytes than the record names.
    """
    key = manifest_key(snapshot.dataset, snapshot.snapshot_id)
    data = read_verified(store, key, snapshot.snapshot_id)
    if is_files_manifest(data):
        raise InvalidInput(
            f"{snapshot.dataset} is a dataset of files, which has no rows; a.data() gives the folder "
            "that holds them."
        )
    manifest: Json = parse_json(data, bytes_max=SNAPSHOT_BYTES_MAX)
    tables = [
        parquet.read_table(pa.BufferReader(read_verified(store, shard["key"], shard["sha256"])))
        for shard in manifest["shards"]
    ]
    table = pa.concat_tables(tables)
    if table.num_rows != manifest["row_count"]:
        raise DataRejected(
            f"Snapshot {snapshot.snapshot_id} of {snapshot.dataset} has {table.num_rows} rows; "
            f"its manifest says {manifest['row_count']}."
        )
    return table


def data_folder(store: ObjectStore, snapshot: SnapshotRef, *, cache: Path, folder: Path) -> Path:
    """Return a folder with the verified files of a snapshot, not to be written to.

    Of one of files the machine's own copy, as `Attempt.data`; the shards of one of rows are written to
    `folder`, as Parquet. Raises DataRejected.
    """
    key = manifest_key(snapshot.dataset, snapshot.snapshot_id)
    data = read_verified(store, key, snapshot.snapshot_id)
    if is_files_manifest(data):
        return local_files(store, snapshot, cache)
    manifest: Json = parse_json(data, bytes_max=SNAPSHOT_BYTES_MAX)
    folder.mkdir(parents=True)
    for number, shard in enumerate(manifest["shards"]):
        path = folder / f"part-{number:05d}.parquet"
        path.write_bytes(read_verified(store, shard["key"], shard["sha256"]))
    return folder
