"""Check the records of a track: each parses, none is missing, the chain and the fold hold.

A track has no witness for its own last record; the ledger's cursor, which remembers the sha256 of
the last record it took in, serves as one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tracks_dagster.ledger import track_states
from tracks_dagster.ledger.ports import Cursor
from tracks_dagster.ledger.track_states import TrackState
from tracks_dagster.recovery.effects.fsck.findings import Finding, FindingKind
from tracks_dagster.track.errors import RecordNewer, TrackBroken
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Record, sha256_hex
from tracks_dagster.track.states.checkpoints import checkpoint_at
from tracks_dagster.track.states.dataset_state import DatasetState
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.track import (
    DATASETS,
    POOLS,
    RUNS,
    dataset_track,
    last_seq,
    log_key,
    read_record,
    run_track,
)

LINEAGE = "lineage/"

RESTORE = "Restore the object from a backup or the bucket's versions"
UPGRADE = (
    "Install the version of the machine that wrote it, which a record does not name, and restore "
    "nothing"
)


def track_names(store: ObjectStore) -> list[str]:
    """Return the name of every track in the store, sorted."""
    return sorted(
        prefix + name
        for prefix in (RUNS, DATASETS, POOLS, LINEAGE)
        for name in store.folders(prefix)
        if has_records(store, prefix + name)
    )


def has_records(store: ObjectStore, name: str) -> bool:
    """Whether the store holds any record of that track."""
    return next(iter(store.list(f"{name}/log/")), None) is not None


def read_track(
    store: ObjectStore,
    name: str,
    cursor: Cursor | None = None,
    *,
    known: Sequence[Record] = (),
) -> tuple[list[Record], list[Finding]]:
    """Return the records that hold, from the first on, and what ended them early if anything did.

    Behind a record of a newer version only the chain is checked. cursor: what the ledger took in last,
    which tells such a record at the end of the track from an edited one. known: are not read again.
    """
    records = list(known)
    newer: list[Finding] = []
    prev_sha256 = records[-1].sha256 if records else None
    last = last_seq(store, name)
    for seq in range(len(records), last + 1):
        data = store.get(log_key(name, seq))
        if data is None:
            return records, [*newer, _missing(name, seq, last)]
        sha256 = sha256_hex(data)
        try:
            record = read_record(name, prev_sha256, data, seq)
            if not newer:
                records.append(record)
        except RecordNewer as error:
            if cursor is not None and cursor.seq == seq and cursor.sha256 != sha256:
                return records, [*newer, _edited(name, seq)]
            newer = newer or [_newer(log_key(name, seq), error)]
        except TrackBroken as error:
            if seq == len(records) + 1:  # what seemed newer may be what was edited
                newer = []
            return records, [*newer, _broken(name, seq, str(error))]
        prev_sha256 = sha256
    return records, newer


def check_cursor(
    name: str, records: Sequence[Record], cursor: Cursor | None, *, is_read: bool = True
) -> Iterator[Finding]:
    """Yield what the ledger's memory of the track's end says against it.

    is_read: `records` are all there are; if not, what ended them early is told already.
    """
    if cursor is None or (cursor.seq >= len(records) and not is_read):
        return
    if cursor.seq >= len(records):
        yield Finding(
            kind=FindingKind.TRACK_CUT,
            where=log_key(name, cursor.seq),
            meaning=f"The ledger has seen record {cursor.seq} of {name}, and the track cannot be "
            "read that far any more: records at its end were deleted or damaged.",
            to_do=f"{RESTORE}. If it cannot be had, `tracks reindex --forget-lost` makes the ledger "
            "agree with what is left.",
        )
    elif records[cursor.seq].sha256 != cursor.sha256:
        yield _edited(name, cursor.seq)


def fold_track(name: str, records: Sequence[Record]) -> tuple[TrackState | None, list[Finding]]:
    """Return the state as far as the records can be folded, and the record that stopped it."""
    state: TrackState | None = None
    for record in records:
        try:
            state = track_states.apply(name, state, record)
        except RecordNewer as error:
            return state, [_newer(log_key(name, record.seq), error)]
        except TrackBroken as error:
            return state, [_against_the_rules(log_key(name, record.seq), error)]
    return state, []


def _newer(where: str, error: RecordNewer) -> Finding:
    return Finding(
        kind=FindingKind.RECORD_NEWER,
        where=where,
        meaning=f"{error} The chain holds, so this is neither damage nor tampering; what it and the "
        "records after it say is not known here.",
        to_do=f"{UPGRADE}.",
    )


def _against_the_rules(where: str, error: TrackBroken) -> Finding:
    return Finding(
        kind=FindingKind.RULES_BROKEN,
        where=where,
        meaning=f"{error} The state before it does not allow it: a writer broke the rules, or a newer "
        "version, which has others, wrote it.",
        to_do="Keep the track as it is and do not retry the run before this is understood.",
    )


def _edited(name: str, seq: int) -> Finding:
    return Finding(
        kind=FindingKind.RECORD_EDITED,
        where=log_key(name, seq),
        meaning=f"Record {seq} of {name} is not the one that the ledger took in: it was edited after "
        "it was written.",
        to_do=f"{RESTORE}, and find out who wrote there.",
    )


def _missing(name: str, seq: int, last: int) -> Finding:
    return Finding(
        kind=FindingKind.RECORD_MISSING,
        where=log_key(name, seq),
        meaning=f"Record {seq} of {name} is gone while records up to {last} are there: it was "
        "deleted, and what came after it is not read.",
        to_do=f"{RESTORE}; until then the track is read as it stood before, so do not retry "
        "the run.",
    )


def _broken(name: str, seq: int, problem: str) -> Finding:
    return Finding(
        kind=FindingKind.RECORD_BROKEN,
        where=log_key(name, seq),
        meaning=f"{problem} Records are never edited, so this is damage or tampering.",
        to_do=f"{RESTORE}, and find out who wrote there; the records before it still hold.",
    )


# --- sources --------------------------------------------------------------------------------------
#
# Check what one track says of another: what a run branched from and trained on must be there.


class Sources:
    """Looks up what other tracks have committed; reads each dataset's track once."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._snapshots: dict[str, frozenset[str] | None] = {}

    def check(self, state: RunState) -> Iterator[Finding]:
        """Yield what the run refers to and no other track knows."""
        yield from self._check_branch(state)
        asked = [state.declared.snapshot, *(a.opened.snapshot for a in state.attempts)]
        for each in dict.fromkeys((ref.dataset, ref.snapshot_id) for ref in asked):
            dataset, snapshot_id = each
            if not self._has(dataset, snapshot_id):
                yield Finding(
                    kind=FindingKind.SNAPSHOT_UNKNOWN,
                    where=run_track(state.run_id),
                    meaning=f"Run {state.run_id} trains on snapshot {snapshot_id} of {dataset}, and "
                    f"{dataset_track(dataset)} has no record of it: that track was cut or replaced.",
                    to_do=f"{RESTORE}: what the run saw cannot be told without it.",
                )

    def _check_branch(self, state: RunState) -> Iterator[Finding]:
        ref = state.declared.branched_from
        if ref is None:
            return
        name = run_track(ref.run_id)
        source, is_newer = self._read(name)
        if is_newer or (
            isinstance(source, RunState) and source.checkpoint(ref.manifest_sha256) is not None
        ):
            return
        yield Finding(
            kind=FindingKind.SOURCE_UNKNOWN,
            where=run_track(state.run_id),
            meaning=f"Run {state.run_id} branched from {checkpoint_at(ref)}, attempt "
            f"{ref.attempt_id}, and {name} has no record of that checkpoint: that track was cut, "
            "deleted or replaced.",
            to_do=f"{RESTORE}; until then nothing shows what the branch began with.",
        )

    def _has(self, dataset: str, snapshot_id: str) -> bool:
        """Whether the dataset has that snapshot; True where only a newer version could tell."""
        for is_again in (False, True):  # it may have been committed since the track was read
            if is_again or dataset not in self._snapshots:
                self._snapshots[dataset] = self._snapshots_of(dataset)
            there = self._snapshots[dataset]
            if there is None or snapshot_id in there:
                return True
        return False

    def _snapshots_of(self, dataset: str) -> frozenset[str] | None:
        state, is_newer = self._read(dataset_track(dataset))
        there = state.snapshots if isinstance(state, DatasetState) else ()
        return None if is_newer else frozenset(s.body.snapshot_id for s in there)

    def _read(self, name: str) -> tuple[TrackState | None, bool]:
        """Return the state of a track, and whether a newer version wrote what is not in it."""
        records, problems = read_track(self._store, name)
        state, objections = fold_track(name, records)
        kinds = {finding.kind for finding in (*problems, *objections)}
        return state, FindingKind.RECORD_NEWER in kinds
