"""The tracks of a generated fleet's datasets and pools. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from benchmarks.history_bodies import snapshot_ref
from benchmarks.history_plan import (
    DATASETS,
    NODES_OF_POOL,
    POOLS,
    SNAPSHOT_COUNT,
    SPAN,
    WIDE_SNAPSHOT,
    Fleet,
)
from benchmarks.history_written import Written
from tracks_dagster.track.bodies import (
    DatasetDeclared,
    NodeQuarantined,
    NodeReleased,
    NodeStruck,
    SnapshotCommitted,
    SnapshotRef,
)
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.records import Kind, format_time, sha256_hex
from tracks_dagster.track.track import dataset_track, pool_track

STRIKES_OF_POOL = 60
QUARANTINE_EVERY_STRIKES = 3
QUARANTINE = timedelta(days=3)


def other_tracks(fleet: Fleet) -> Iterator[Written]:
    """Yield the tracks of the datasets and of the pools."""
    for dataset in DATASETS.values():
        yield _dataset(fleet, dataset, WIDE_SNAPSHOT + 1)
        yield _dataset(fleet, f"{dataset}-heldout", 1)
    for pool in POOLS:
        yield _pool(fleet, pool)


def _dataset(fleet: Fleet, dataset: str, snapshot_count: int) -> Written:
    """Return the track of a dataset whose snapshots come at even distances."""
    track = Written(dataset_track(dataset))
    begin = fleet.begin_at - timedelta(days=3)
    spec = DatasetDeclared(dataset=dataset, description=f"Samples of {dataset}.", kind="text")
    track.add(Kind.DATASET_DECLARED, to_json(spec), begin)
    for number in range(snapshot_count):
        body = _snapshot(snapshot_ref(dataset, number), number)
        at = begin + timedelta(days=1) + number / SNAPSHOT_COUNT * SPAN
        track.add(Kind.SNAPSHOT_COMMITTED, to_json(body), min(at, fleet.end_at))
    return track


def _snapshot(ref: SnapshotRef, number: int) -> SnapshotCommitted:
    return SnapshotCommitted(
        dataset=ref.dataset,
        snapshot_id=ref.snapshot_id,
        manifest_key=f"datasets/{ref.dataset}/snapshots/{ref.snapshot_id}/manifest.json",
        row_count=1_000_000 + number,
        total_bytes=4_000_000_000,
        shard_count=32,
        logical_sha256=sha256_hex(f"rows {ref.snapshot_id}".encode()),
        source="s3://example/landing",
        checks=("rows_are_unique", "text_is_not_empty"),
    )


def _pool(fleet: Fleet, pool: str) -> Written:
    """Return the track of a pool: strikes at even distances; every third quarantines its node."""
    track = Written(pool_track(pool))
    for number in range(STRIKES_OF_POOL):
        at = fleet.begin_at + (number + 1) / (STRIKES_OF_POOL + 1) * SPAN
        node = f"{pool}-{number * 7 % NODES_OF_POOL:03d}"
        run_index = (fleet.run_count - 1) * number // STRIKES_OF_POOL
        strike = NodeStruck(
            pool=pool,
            node=node,
            run_id=fleet.run_id(run_index),
            attempt_id=1,
            reason="gpu_hardware",
            struck_at=format_time(at),
            exposure_s=86_400.0,
            pool_exposure_s=86_400.0 * NODES_OF_POOL,
            pool_node_count=NODES_OF_POOL,
            why="A device of it reported a hardware fault.",
            by="node_health",
        )
        track.add(Kind.NODE_STRUCK, to_json(strike), at)
        if number % QUARANTINE_EVERY_STRIKES == 0:
            _quarantine(track, pool, node, at=at + timedelta(seconds=1))
    return track


def _quarantine(track: Written, pool: str, node: str, *, at: datetime) -> None:
    until_at = format_time(at + QUARANTINE)
    why = "Three strikes in seven days."
    quarantine = NodeQuarantined(pool=pool, node=node, until_at=until_at, by="node_health", why=why)
    track.add(Kind.NODE_QUARANTINED, to_json(quarantine), at)
    release = NodeReleased(pool=pool, node=node, by="gus", why="The device was replaced.")
    track.add(Kind.NODE_RELEASED, to_json(release), at + timedelta(days=1))
