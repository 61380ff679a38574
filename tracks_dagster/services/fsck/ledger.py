"""Check the ledger against the tracks: every row must be what a projection of the records gives.

The ledger may lag behind the end of a track (ranks append without it), so each track is folded only
as far as the ledger says that it has taken it in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from tracks_dagster.core.dataset_state import DatasetState
from tracks_dagster.core.errors import LedgerError
from tracks_dagster.core.pool_state import PoolState
from tracks_dagster.core.ports import Cursor, Ledger, ObjectStore, Row
from tracks_dagster.core.projection import dataset_rows, run_rows
from tracks_dagster.core.projection_lineage import quarantine_rows
from tracks_dagster.core.projection_pools import pool_rows
from tracks_dagster.core.projection_texts import text_rows
from tracks_dagster.core.quarantine_state import QuarantineState
from tracks_dagster.core.records import Json, Record, format_time
from tracks_dagster.core.run_state import RunState
from tracks_dagster.services.fsck.findings import Finding, FindingKind
from tracks_dagster.services.fsck.tracks import fold_track, has_records

RUN_TABLES = {  # table → columns that name a row, of a run's track
    "training_runs": ("run_id",),
    "training_attempts": ("run_id", "attempt_id"),
    "attempt_nodes": ("run_id", "attempt_id", "node"),
    "attempt_resumes": ("run_id", "attempt_id", "known_as"),
    "attempt_facts": ("run_id", "attempt_id"),
    "attempt_readings": ("run_id", "seq"),
    "run_facts": ("run_id",),
    "checkpoints": ("run_id", "manifest_sha256"),
    "evals": ("run_id", "eval_id", "number"),
    "promotions": ("run_id", "seq"),
    "notes": ("run_id", "seq"),
}
DATASET_TABLES = {"datasets": ("dataset",), "snapshots": ("dataset", "snapshot_id")}
POOL_TABLES = {"node_strikes": ("pool", "seq"), "node_quarantines": ("pool", "seq")}
QUARANTINE_TABLES = {"source_quarantines": ("seq",)}
TEXT_TABLES = {"texts": ("track", "seq")}  # of every track
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_US_MAX = 2**57  # some 4500 years: what is beyond was no time
REINDEX = "Run `tracks reindex`: it rebuilds the ledger from the tracks, which are the truth."


def unreadable(error: LedgerError) -> Finding:
    """Return the one finding of a ledger that cannot be read at all."""
    return Finding(
        kind=FindingKind.LEDGER_UNREADABLE,
        where="ledger",
        meaning=f"{error} Everything else was checked; without the ledger, records that are missing "
        "at the end of a track are not noticed.",
        to_do="If a track is broken, restore it first. Then do what is said here of the ledger, and "
        "run `tracks fsck` again.",
    )


def after_restoring(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings; none says to reindex at once while the ledger remembers what is lost."""
    kept = {FindingKind.LEDGER_REMEMBERS_MORE, FindingKind.LEDGER_TRACK_LOST}
    if not any(finding.kind in kept for finding in findings):
        return list(findings)
    later = REINDEX.replace("Run", "Restore the tracks that do not hold first; then run", 1)
    return [replace(f, to_do=later) if f.to_do == REINDEX else f for f in findings]


def check_ledger(
    ledger: Ledger,
    name: str,
    records: Sequence[Record],
    cursor: Cursor | None,
    problems: Sequence[Finding],
) -> Iterator[Finding]:
    """Compare the ledger's rows of the track `name` with its records, as far as they hold.

    problems: of the track. All rows that differ are one finding then: they are its memory. Rows of what
    only a newer version can read are left to it.
    """
    is_newer = any(each.kind is FindingKind.RECORD_NEWER for each in problems)
    if cursor is None or not problems or is_newer:
        state, _ = fold_track(name, records)
        is_told = state is not None and (cursor is None or cursor.seq <= state.head.seq)
        if is_told or not is_newer:
            yield from _differences(ledger, name, records, cursor)
        return
    count = sum(1 for _ in _differences(ledger, name, records, cursor))
    if count or cursor.seq >= len(records):
        yield Finding(
            kind=FindingKind.LEDGER_REMEMBERS_MORE,
            where=f"ledger, {name}",
            meaning=f"{name} does not hold, and the ledger remembers it up to record {cursor.seq}: "
            f"{count} of its rows are not what the readable records give.",
            to_do="Do not run `tracks reindex` before the track is restored: it would throw away "
            "what the ledger remembers.",
        )


def _differences(
    ledger: Ledger, name: str, records: Sequence[Record], cursor: Cursor | None
) -> Iterator[Finding]:
    if cursor is None:
        yield Finding(
            kind=FindingKind.LEDGER_LACKS_TRACK,
            where=f"ledger, {name}",
            meaning=f"The ledger does not know {name}, though the track is there.",
            to_do=REINDEX,
        )
        return
    taken_in = records[: cursor.seq + 1]
    state, _ = fold_track(name, taken_in)
    if isinstance(state, RunState):
        yield from _compare(ledger, RUN_TABLES, "run_id", state.run_id, run_rows(state))
    elif isinstance(state, DatasetState):
        dataset = state.declared.dataset
        yield from _compare(ledger, DATASET_TABLES, "dataset", dataset, dataset_rows(state))
    elif isinstance(state, PoolState):
        yield from _compare(ledger, POOL_TABLES, "pool", state.pool, pool_rows(state))
    elif isinstance(state, QuarantineState):
        yield from _compare(ledger, QUARANTINE_TABLES, "'all'", "all", quarantine_rows(state))
    if state is not None:
        said = {"texts": text_rows(name, taken_in)}
        yield from _compare(ledger, TEXT_TABLES, "track", name, said)


def check_orphans(ledger: Ledger, store: ObjectStore, names: Collection[str]) -> Iterator[Finding]:
    """Yield the tracks that the ledger knows and the store does not have.

    names: of those that were there a while ago; one that is newer is looked for.
    """
    for row in ledger.query("select track from track_cursors order by track"):
        if row["track"] not in names and not has_records(store, row["track"]):
            yield Finding(
                kind=FindingKind.LEDGER_TRACK_LOST,
                where=f"ledger, {row['track']}",
                meaning=f"The ledger knows {row['track']}, and the store has no such track: it was "
                "deleted, or the ledger belongs to another store.",
                to_do="Check TRACKS_STORE; if it is the right one, restore the track from a backup: "
                "`tracks reindex` would forget what the ledger still knows of it.",
            )


def _compare(
    ledger: Ledger,
    tables: Mapping[str, tuple[str, ...]],
    owner_column: str,
    owner: str,
    expected: Mapping[str, Sequence[Row]],
) -> Iterator[Finding]:
    for table, key in tables.items():
        rows = ledger.query(
            f"select * from {table} where {owner_column} = :owner", {"owner": owner}
        )
        found = {tuple(row[column] for column in key): row for row in rows}
        wanted = {tuple(row[column] for column in key): row for row in expected.get(table, ())}
        for identity in sorted(found.keys() | wanted.keys(), key=str):
            problem = _difference(found.get(identity), wanted.get(identity))
            if problem is not None:
                named = ", ".join(f"{c} {v}" for c, v in zip(key, identity, strict=True))
                yield Finding(
                    kind=FindingKind.LEDGER_ROW_WRONG,
                    where=f"ledger, {table}",
                    meaning=f"The row of {named} {problem}; the ledger was changed by hand, or a "
                    "projection failed. The track holds.",
                    to_do=REINDEX,
                )


def _difference(found: Row | None, wanted: Row | None) -> str | None:
    """Say how a row of the ledger differs from what the records give, or None."""
    if found is None:
        return "is missing"
    if wanted is None:
        return "is one that no record gives"
    differing = sorted(column for column in wanted if found.get(column) != wanted[column])
    if not differing:
        return None
    first = differing[0]
    values = (_said(first, row.get(first)) for row in (found, wanted))
    return f"has {first} {'; the records give '.join(values)}"


def _said(column: str, value: Json) -> str:
    """Return a value as people write it; a column `…_us` holds a time in microseconds since 1970."""
    if value is None:
        return "nothing"
    if column.endswith("_us") and isinstance(value, int) and abs(value) <= _TIME_US_MAX:
        return format_time(_EPOCH + timedelta(microseconds=value))
    return format_time(value) if isinstance(value, datetime) else repr(value)
