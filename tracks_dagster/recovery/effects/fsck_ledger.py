"""Check the ledger against the tracks: every row must be what a projection of the records gives.

The ledger may lag behind the end of a track (ranks append without it), so each track is folded only
as far as the ledger has taken it in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from tracks_dagster.ledger.ports import Cursor, Ledger, Row
from tracks_dagster.ledger.track_states import owned_rows, rows_of
from tracks_dagster.recovery.effects.fsck_tracks import (
    Finding,
    FindingKind,
    fold_track,
    has_records,
)
from tracks_dagster.track.errors import LedgerError, TrackBroken
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json, Record, format_time

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_US_MAX = 2**57  # some 4500 years: what is beyond was not a time
REINDEX = (
    "Run `tracks reindex`: it rebuilds the ledger from the tracks, which are the truth, and "
    "names what it cannot take in."
)


def unreadable(error: LedgerError) -> Finding:
    """Return the one finding of a ledger that cannot be read at all."""
    return Finding(
        kind=FindingKind.LEDGER_UNREADABLE,
        where="ledger",
        meaning=f"{error} Everything else was checked; without the ledger, records that are missing "
        "at the end of a track are not noticed.",
        to_do="If a track is broken, restore it first. Then do what is asked here for the ledger, and "
        "run `tracks fsck` again.",
    )


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
    state, _ = fold_track(name, records)
    if state is None and cursor is None:
        return  # nothing of it can be read, so the ledger lacks nothing
    if cursor is None or not problems or is_newer:
        is_known = state is not None and (cursor is None or cursor.seq <= state.head.seq)
        if is_known or not is_newer:
            yield from _differences(ledger, name, records, cursor)
        return
    count = sum(1 for _ in _differences(ledger, name, records, cursor))
    if count or cursor.seq >= len(records):
        yield Finding(
            kind=FindingKind.LEDGER_REMEMBERS_MORE,
            where=f"ledger, {name}",
            meaning=f"{name} does not hold, and the ledger remembers it up to record {cursor.seq}: "
            f"{count} of its rows are not what the readable records give.",
            to_do="Restore the track. Until then `tracks reindex` leaves these rows as they are; "
            "`tracks reindex --forget-lost` would throw away what the ledger remembers.",
        )


def _differences(
    ledger: Ledger, name: str, records: Sequence[Record], cursor: Cursor | None
) -> Iterator[Finding]:
    try:
        yield from _wrong_rows(ledger, name, records, cursor)
    except TrackBroken as error:
        yield Finding(
            kind=FindingKind.RECORD_WITHOUT_ROWS,
            where=f"ledger, {name}",
            meaning=f"{error} The track holds; the ledger does not show all of it.",
            to_do="Nothing is lost: `tracks explain` and `tracks report` read the track itself.",
        )


def _wrong_rows(
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
    if state is not None:
        yield from _compare(ledger, name, rows_of(name, state, None, taken_in))


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
                to_do="Check TRACKS_STORE; if it is the right one, restore the track from a backup. "
                "`tracks reindex --forget-lost` lets go of what the ledger still knows of it.",
            )


def _compare(ledger: Ledger, name: str, expected: Mapping[str, Sequence[Row]]) -> Iterator[Finding]:
    for owned in owned_rows(name):
        table, key = owned.table, owned.key
        if table not in expected:
            continue  # of a history: what its records name, not they, gives these rows
        where = f" where {owned.column} = :owner" if owned.column else ""
        rows = ledger.query(f"select * from {table}{where}", {"owner": owned.owner})
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
    """Return how a row of the ledger differs from what the records give, or None."""
    if found is None:
        return "is missing"
    if wanted is None:
        return "is one that no record gives"
    differing = sorted(column for column in wanted if found.get(column) != wanted[column])
    if not differing:
        return None
    first = differing[0]
    values = (_format(first, row.get(first)) for row in (found, wanted))
    return f"has {first} {'; the records give '.join(values)}"


def _format(column: str, value: Json) -> str:
    """Return a value as people write it; a column `…_us` holds a time in microseconds since 1970."""
    if value is None:
        return "nothing"
    if column.endswith("_us") and isinstance(value, int) and abs(value) <= _TIME_US_MAX:
        return format_time(_EPOCH + timedelta(microseconds=value))
    return format_time(value) if isinstance(value, datetime) else repr(value)
