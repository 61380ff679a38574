"""A dataset's state, a pure fold over its track, and what a snapshot of it is.

A snapshot is shards named by their sha256, and a manifest whose sha256 is its id. No time, machine or
path is in a manifest: the same data gives the same id. `data.effects.datasets` reads sources, checks
rows and writes shards; `data.effects.snapshots` stores them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from tracks_dagster.track.bodies import DatasetDeclared, SnapshotCommitted, SnapshotDecision
from tracks_dagster.track.body_json import body_of
from tracks_dagster.track.errors import InvalidInput, TrackBroken, UnknownRun
from tracks_dagster.track.records import Json, Kind, Record, canonical_json, sha256_hex

PREFIX_CHARACTERS_MIN = 6  # of a shortened snapshot id
SNAPSHOTS_NAMED_MAX = 5  # in an error message
MANIFEST_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotQuarantine:
    """One `snapshot_quarantined`."""

    seq: int
    at: datetime
    body: SnapshotDecision


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotState:
    """One committed snapshot; `quarantine` is the decision that holds, None while it may be used."""

    seq: int
    at: datetime
    body: SnapshotCommitted
    quarantine: SnapshotQuarantine | None = None

    @property
    def quarantined_why(self) -> str | None:
        """Why nobody may train on it; None while one may."""
        return self.quarantine.body.why if self.quarantine is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetState:
    """A dataset and its snapshots, oldest first. `head` is the last record folded."""

    head: Record
    declared: DatasetDeclared
    declared_at: datetime
    snapshots: tuple[SnapshotState, ...] = ()

    def snapshot(self, snapshot_id: str) -> SnapshotState | None:
        """Return the snapshot of that id, or None."""
        return next((s for s in self.snapshots if s.body.snapshot_id == snapshot_id), None)

    @property
    def newest_usable(self) -> SnapshotState | None:
        """The newest snapshot that is not quarantined."""
        usable = [s for s in self.snapshots if s.quarantined_why is None]
        return usable[-1] if usable else None


def fold(records: Iterable[Record], state: DatasetState | None = None) -> DatasetState | None:
    """Return the state after `records`; None for an empty track."""
    for record in records:
        state = apply(state, record)
    return state


def apply(state: DatasetState | None, record: Record) -> DatasetState:
    """Return the state after one more record; raises TrackBroken for one that cannot come next."""
    if (state is None) != (record.kind is Kind.DATASET_DECLARED):
        raise TrackBroken(
            f"Record {record.seq} ({record.kind}) cannot come here: the first record of a "
            "dataset, and only the first, is dataset_declared."
        )
    if state is None:
        declared = body_of(DatasetDeclared, record)
        return DatasetState(head=record, declared=declared, declared_at=record.at)
    match record.kind:
        case Kind.SNAPSHOT_COMMITTED:
            body = body_of(SnapshotCommitted, record)
            added = SnapshotState(seq=record.seq, at=record.at, body=body)
            return replace(state, head=record, snapshots=(*state.snapshots, added))
        case Kind.SNAPSHOT_QUARANTINED | Kind.SNAPSHOT_RELEASED:
            decision = body_of(SnapshotDecision, record)
            quarantine = None
            if record.kind is Kind.SNAPSHOT_QUARANTINED:
                quarantine = SnapshotQuarantine(seq=record.seq, at=record.at, body=decision)
            snapshots = tuple(
                replace(s, quarantine=quarantine)
                if s.body.snapshot_id == decision.snapshot_id
                else s
                for s in state.snapshots
            )
            return replace(state, head=record, snapshots=snapshots)
        case Kind.NOTE | Kind.ALERT:
            return replace(state, head=record)
        case _:
            raise TrackBroken(
                f"Record {record.seq} ({record.kind}) does not belong to a dataset's track."
            )


def find_by_prefix(state: DatasetState, prefix: str) -> SnapshotState:
    """Return the snapshot whose id begins with `prefix`; raises UnknownRun and InvalidInput."""
    dataset = state.declared.dataset
    if len(prefix) < PREFIX_CHARACTERS_MIN:
        raise InvalidInput(
            f"{prefix!r} is too short for a snapshot id; give at least "
            f"{PREFIX_CHARACTERS_MIN} of its 64 hex digits."
        )
    found = [s for s in state.snapshots if s.body.snapshot_id.startswith(prefix)]
    if not found:
        newest = [s.body.snapshot_id for s in state.snapshots[-SNAPSHOTS_NAMED_MAX:]]
        raise UnknownRun(
            f"There is no snapshot {prefix!r} of dataset {dataset}; the newest are: "
            f"{', '.join(reversed(newest))}."
        )
    if len(found) > 1:
        raise InvalidInput(
            f"{prefix!r} begins {len(found)} snapshot ids of {dataset}; give more digits."
        )
    return found[0]


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


def checks_key(dataset: str, sha256: str) -> str:
    """Return the key of the file of checks that snapshots of a dataset passed."""
    return f"datasets/{dataset}/checks/{sha256}.py"


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
