"""The state of a dataset: a pure fold over the records of its track."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from tracks_dagster.track.bodies import DatasetDeclared, SnapshotCommitted, SnapshotDecision
from tracks_dagster.track.body_json import body_of
from tracks_dagster.track.errors import InvalidInput, TrackBroken, UnknownRun
from tracks_dagster.track.records import Kind, Record

PREFIX_CHARACTERS_MIN = 6  # of a shortened snapshot id
SNAPSHOTS_NAMED_MAX = 5  # in an error message


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
    """Return the state after one more record; raises TrackBroken for one that cannot stand there."""
    if (state is None) != (record.kind is Kind.DATASET_DECLARED):
        raise TrackBroken(
            f"Record {record.seq} ({record.kind}) cannot stand there: the first record of a "
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
