"""Check the records of a track: each parses, none is missing, the chain and the fold hold.

A track has no witness for its own last record; the ledger's cursor, which remembers the sha256 of
the last record it took in, serves as one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tracks_dagster.core import dataset_state, pool_state, quarantine_state, run_fold
from tracks_dagster.core.dataset_state import DatasetState
from tracks_dagster.core.errors import TrackBroken
from tracks_dagster.core.pool_state import PoolState
from tracks_dagster.core.ports import Cursor, ObjectStore
from tracks_dagster.core.quarantine_state import QuarantineState
from tracks_dagster.core.records import Record, parse
from tracks_dagster.core.run_state import RunState
from tracks_dagster.core.track import POOLS, QUARANTINES_TRACK, RUNS, check_chain, log_key
from tracks_dagster.services.fsck.findings import Finding, FindingKind

DATASETS = "datasets/"
LINEAGE = "lineage/"

TrackState = RunState | DatasetState | PoolState | QuarantineState

RESTORE = "Restore the object from a backup or the bucket's versions"


def track_names(store: ObjectStore) -> list[str]:
    """Return the name of every track in the store, sorted."""
    return sorted(
        prefix + name
        for prefix in (RUNS, DATASETS, POOLS, LINEAGE)
        for name in store.folders(prefix)
        if next(iter(store.list(f"{prefix}{name}/log/")), None) is not None
    )


def read_track(store: ObjectStore, name: str) -> tuple[list[Record], list[Finding]]:
    """Return the records that hold, from the first on, and what ended them early if anything did."""
    records: list[Record] = []
    prefix = f"{name}/log/"
    keys = [key.removeprefix(prefix).removesuffix(".json") for key in store.list(prefix)]
    last_seq = max((int(key) for key in keys if key.isdigit()), default=-1)
    for seq in range(last_seq + 1):
        data = store.get(log_key(name, seq))
        if data is None:
            return records, [_missing(name, seq, last_seq)]
        try:
            record = parse(data, seq=seq)
            check_chain(name, records[-1] if records else None, record)
        except TrackBroken as error:
            return records, [_broken(name, seq, str(error))]
        records.append(record)
    return records, []


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
            to_do=f"{RESTORE}. If it cannot be had, `tracks reindex` makes the ledger agree with "
            "what is left.",
        )
    elif records[cursor.seq].sha256 != cursor.sha256:
        yield Finding(
            kind=FindingKind.RECORD_EDITED,
            where=log_key(name, cursor.seq),
            meaning=f"Record {cursor.seq} of {name} is not the one that the ledger took in: it was "
            "edited after it was written.",
            to_do=f"{RESTORE}, and find out who wrote there.",
        )


def fold_track(name: str, records: Sequence[Record]) -> tuple[TrackState | None, list[Finding]]:
    """Return the state as far as the records can be folded, and the record that stopped it."""
    try:
        if name.startswith("runs/"):
            return run_fold.fold(records), []
        if name.startswith(POOLS):
            return pool_state.fold(records), []
        if name == QUARANTINES_TRACK:
            return quarantine_state.fold(records), []
        return dataset_state.fold(records), []
    except TrackBroken as error:
        finding = Finding(
            kind=FindingKind.RULES_BROKEN,
            where=name,
            meaning=f"{error} The state before it does not allow it: a writer broke the rules.",
            to_do="Keep the track as it is and do not retry the run before this is understood.",
        )
        return None, [finding]


def _missing(name: str, seq: int, last_seq: int) -> Finding:
    return Finding(
        kind=FindingKind.RECORD_MISSING,
        where=log_key(name, seq),
        meaning=f"Record {seq} of {name} is gone while records up to {last_seq} are there: it was "
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
