"""What a data snapshot is: shards named by their sha256, and a manifest whose sha256 is its id.

No time, machine or path stands in a manifest: the same data gives the same id. Reading sources,
checking rows and writing shards is `data.effects.datasets`'s work; storing them
`data.effects.snapshots`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tracks_dagster.track.records import Json, canonical_json, sha256_hex

MANIFEST_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a snapshot; type is DuckDB's name of it."""

    name: str
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFile:
    """One Parquet file that was prepared, not stored yet."""

    path: Path
    sha256: str
    size_bytes: int
    row_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedSnapshot:
    """Rows that passed their checks, in shards on this machine.

    kind: "text" or "table". logical_sha256: of the values in order, whatever wrote the files.
    source: what the data is, the same on every machine. checks: what the rows were checked for.
    """

    kind: str
    columns: tuple[Column, ...]
    shards: tuple[ShardFile, ...]
    logical_sha256: str
    source: str
    checks: tuple[str, ...]

    @property
    def row_count(self) -> int:
        """Rows of all shards."""
        return sum(shard.row_count for shard in self.shards)

    @property
    def total_bytes(self) -> int:
        """Stored bytes of all shards."""
        return sum(shard.size_bytes for shard in self.shards)


def manifest(dataset: str, prepared: PreparedSnapshot) -> bytes:
    """Return the bytes of the manifest; their sha256 is the snapshot's id."""
    return canonical_json(
        {
            "format": MANIFEST_FORMAT,
            "dataset": dataset,
            "kind": prepared.kind,
            "columns": [{"name": c.name, "type": c.type} for c in prepared.columns],
            "shards": [_shard(dataset, shard) for shard in prepared.shards],
            "row_count": prepared.row_count,
            "logical_sha256": prepared.logical_sha256,
            "source": prepared.source,
        }
    )


def snapshot_id(manifest_bytes: bytes) -> str:
    """Return the id of the snapshot that has this manifest."""
    return sha256_hex(manifest_bytes)


def manifest_key(dataset: str, snapshot_id: str) -> str:
    """Return the key under which a snapshot's manifest is stored."""
    return f"datasets/{dataset}/manifests/{snapshot_id}.json"


def shard_key(dataset: str, sha256: str) -> str:
    """Return the key under which a shard is stored."""
    return f"datasets/{dataset}/shards/{sha256}.parquet"


def _shard(dataset: str, shard: ShardFile) -> dict[str, Json]:
    return {
        "key": shard_key(dataset, shard.sha256),
        "sha256": shard.sha256,
        "bytes": shard.size_bytes,
        "rows": shard.row_count,
    }
