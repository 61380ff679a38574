"""The tables that a dataset's track is projected into."""

from __future__ import annotations

from sqlalchemy import BigInteger, Table, Text

from tracks_dagster.ledger.effects.database.column_types import UtcTime
from tracks_dagster.ledger.effects.database.columns import key, may, metadata, must

datasets = Table(
    "datasets",
    metadata,
    key("dataset", Text),
    must("kind", Text),
    must("description", Text),
    must("declared_at", UtcTime),
    must("snapshot_count", BigInteger),
    may("newest_usable_snapshot_id", Text),
)

snapshots = Table(
    "snapshots",
    metadata,
    key("dataset", Text),
    key("snapshot_id", Text),
    must("status", Text),  # usable or quarantined
    may("quarantined_why", Text),
    must("manifest_key", Text),
    must("logical_sha256", Text),
    must("row_count", BigInteger),
    must("shard_count", BigInteger),
    must("total_bytes", BigInteger),
    must("source", Text),
    must("checks_json", Text),
    may("dagster_run_id", Text),
    must("committed_at", UtcTime),
    may("quarantined_at", UtcTime),  # since when it is; null while it is usable
)
