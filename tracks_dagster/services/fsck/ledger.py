"""Check the ledger against the tracks: every row must be what a projection of the records gives.

The ledger may lag behind the end of a track (ranks append without it), so each track is folded only
as far as the ledger says that it has taken it in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tracks_dagster.core.dataset_state import DatasetState
from tracks_dagster.core.pool_state import PoolState
from tracks_dagster.core.ports import Ledger, Row
from tracks_dagster.core.projection import dataset_rows, run_rows
from tracks_dagster.core.projection_lineage import quarantine_rows
from tracks_dagster.core.projection_pools import pool_rows
from tracks_dagster.core.projection_texts import text_rows
from tracks_dagster.core.quarantine_state import QuarantineState
from tracks_dagster.core.records import Record
from tracks_dagster.core.run_state import RunState
from tracks_dagster.services.fsck.findings import Finding, FindingKind
from tracks_dagster.services.fsck.tracks import fold_track

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
REINDEX = "Run `tracks reindex`: it rebuilds the ledger from the tracks, which are the truth."


def check_ledger(ledger: Ledger, name: str, records: Sequence[Record]) -> Iterator[Finding]:
    """Compare the ledger's rows of the track `name` with its records, as far as they hold."""
    cursor = ledger.cursor(name)
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


def check_orphans(ledger: Ledger, names: Sequence[str]) -> Iterator[Finding]:
    """Yield the tracks that the ledger knows and the store does not have."""
    for row in ledger.query("select track from track_cursors order by track"):
        if row["track"] not in names:
            yield Finding(
                kind=FindingKind.LEDGER_TRACK_LOST,
                where=f"ledger, {row['track']}",
                meaning=f"The ledger knows {row['track']}, and the store has no such track: it was "
                "deleted, or the ledger belongs to another store.",
                to_do="Check TRACKS_STORE; if it is the right one, restore the track from a backup. "
                f"{REINDEX}",
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
                    "projection failed. The tracks hold.",
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
    return f"has {first} {found.get(first)!r}; the records give {wanted[first]!r}"
