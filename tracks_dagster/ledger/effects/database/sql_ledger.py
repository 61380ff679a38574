"""The port `Ledger` over SQLite or Postgres: one schema, one set of statements for both."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.ext.compiler import compiles

from tracks_dagster.ledger.effects.database.beside import make_beside, rebuilding_alone, swap
from tracks_dagster.ledger.effects.database.engine import transaction
from tracks_dagster.ledger.effects.database.schema import (
    check_version,
    current_version,
    read_version,
)
from tracks_dagster.ledger.effects.database.tables import (
    UtcTime,
    as_utc,
    metadata,
    search_statement,
    track_cursors,
)
from tracks_dagster.ledger.ports import Cursor, Row
from tracks_dagster.ledger.track_states import Owned, owned_rows
from tracks_dagster.track.errors import LedgerError
from tracks_dagster.track.names import run_track
from tracks_dagster.track.records import Json, format_time

_COLUMNS = [column for table in metadata.tables.values() for column in table.columns]
_TIMES = {column.name for column in _COLUMNS if isinstance(column.type, UtcTime)}
# One key of a column of JSON, as a list with it in: both databases then give its text as it was stored.
# Python reads it several times as fast as the whole column.
_JSON_AT = re.compile(r"\bjson_at\((\w+), :(\w+)\)")
_JSON_PARTS = {
    "sqlite": r"""nullif(json_extract(\1, '$."' || :\2 || '"', '$."' || :\2 || '"'), '[null,null]')""",
    "postgresql": r"'[' || cast(cast(\1 as json) -> :\2 as text) || ']'",
}
_BOOLEANS = {column.name for column in _COLUMNS if isinstance(column.type, sa.Boolean)}


class SqlLedger:
    """A ledger, and the way to rebuild one of any version. Safe from several threads and processes."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def cursor(self, track: str) -> Cursor | None:
        """Return how far `track` has been projected, or None."""
        query = sa.select(track_cursors.c.seq, track_cursors.c.sha256).where(
            track_cursors.c.track == track
        )
        with transaction(self._engine, "read", write=False) as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else Cursor(seq=row.seq, sha256=row.sha256)

    def apply(
        self,
        track: str,
        *,
        expected: Cursor | None,
        advanced: Cursor,
        rows: Mapping[str, Sequence[Row]],
        replaced_runs: Collection[str] = (),
    ) -> bool:
        """Upsert `rows` and move the cursor in one transaction, if it is at `expected`.

        Raises LedgerError, too, when another version has rebuilt the ledger since it was opened.
        """
        with transaction(self._engine, f"project {track} into", write=True) as connection:
            check_version(connection)
            # First the cursor: anyone who loses the race waits on its row, then sees that it moved.
            if not _moved(connection, track, expected, advanced):
                return False
            for owned in (
                each for run_id in replaced_runs for each in owned_rows(run_track(run_id))
            ):
                if owned.column is not None:
                    table = metadata.tables[owned.table]
                    connection.execute(
                        table.delete().where(_is_owned(table.c[owned.column], owned))
                    )
            for name, table_rows in rows.items():
                _upsert(connection, metadata.tables[name], table_rows)
        return True

    def query(
        self, sql: str, parameters: Mapping[str, Json] | None = None
    ) -> list[dict[str, Json]]:
        """Return the rows of one read-only SELECT with `:name` parameters, of which times are aware.

        A column that is named as one of the ledger's times or truths comes as a datetime or a bool.
        """
        sql = _JSON_AT.sub(_JSON_PARTS[self._engine.dialect.name], sql)
        # As text a time is compared right by both databases; SQLite would write it in another form.
        given = {
            name: format_time(value) if isinstance(value, datetime) else value
            for name, value in (parameters or {}).items()
        }
        with transaction(self._engine, "read", write=False) as connection:
            found = connection.execute(sa.text(sql), given)
            names, rows = tuple(found.keys()), found.all()
        if self._engine.dialect.name == "sqlite" and not (_TIMES | _BOOLEANS) & {*names}:
            return [
                dict(zip(names, row, strict=True)) for row in rows
            ]  # as they are: in half the time
        return [{n: _plain(n, value) for n, value in zip(names, row, strict=True)} for row in rows]

    def search(
        self,
        phrases: Sequence[str],
        *,
        since: datetime | None = None,
        run_id: str | None = None,
        attempt_id: int | None = None,
        limit: int,
    ) -> list[dict[str, Json]]:
        """Return rows of `texts`, but `words`, in which all `phrases` occur, the newest first."""
        statement = search_statement(
            self._engine.dialect,
            phrases,
            since=since,
            run_id=run_id,
            attempt_id=attempt_id,
            limit=limit,
        )
        with transaction(self._engine, "search", write=False) as connection:
            return [dict(row) for row in connection.execute(statement).mappings()]

    def forget(self, track: str) -> None:
        """Remove every row of a track and its cursor."""
        with transaction(self._engine, f"remove {track} from", write=True) as connection:
            connection.execute(track_cursors.delete().where(track_cursors.c.track == track))
            for owned in owned_rows(track):
                table = metadata.tables[owned.table]
                removed = table.delete()
                if owned.column is not None:
                    removed = removed.where(_is_owned(table.c[owned.column], owned))
                connection.execute(removed)

    def remembered(self, track: str) -> dict[str, list[Row]]:
        """Return the rows of a track in this version's columns; one that is not there is null."""
        rows: dict[str, list[Row]] = {}
        with transaction(self._engine, "read", write=False) as connection:
            there = sa.inspect(connection)
            for owned in owned_rows(track):
                if not there.has_table(owned.table):
                    continue
                table = metadata.tables[owned.table]
                names = {column["name"] for column in there.get_columns(owned.table)}
                query = sa.select(*(column for column in table.columns if column.name in names))
                if owned.column is not None:
                    query = query.where(_is_owned(table.c[owned.column], owned))
                empty = dict.fromkeys(table.columns.keys())
                found = connection.execute(query).mappings()
                rows[owned.table] = [empty | dict(row) for row in found]
        return rows

    @contextmanager
    def beside(self, *, only_outdated: bool = False) -> Iterator[SqlLedger | None]:
        """Give a second ledger to fill, which takes this one's place when the context ends well.

        It starts empty, or, for a ledger of an older version, with what an interrupted call left. One
        process at a time; only_outdated: gives None where another was faster.
        """
        with rebuilding_alone(self._engine) as check_alone:
            is_outdated = read_version(self._engine) != current_version()
            if only_outdated and not is_outdated:
                yield None
                return
            fresh = make_beside(self._engine, starts_over=not is_outdated)
            try:
                yield SqlLedger(fresh)
            finally:
                fresh.dispose()
            check_alone()
            swap(self._engine, fresh)

    def dump(self) -> dict[str, list[dict[str, Json]]]:
        """Return every row of every table, by table and in the order of primary keys.

        Two ledgers of the same tracks have equal dumps, on whichever database.
        """
        with transaction(self._engine, "read", write=False) as connection:
            return {table.name: _dumped(connection, table) for table in metadata.sorted_tables}


def _is_owned(column: sa.Column[Any], owned: Owned) -> sa.ColumnElement[bool]:
    return (
        column.startswith(owned.owner, autoescape=True)
        if owned.is_prefix
        else column == owned.owner
    )


def _moved(connection: Connection, track: str, expected: Cursor | None, advanced: Cursor) -> bool:
    """Move the cursor of `track` from `expected` to `advanced`; False when it is elsewhere."""
    values = {"seq": advanced.seq, "sha256": advanced.sha256}
    statement: sa.Update | sa.Insert
    if expected is None:
        statement = _Create(track_cursors).values(track=track, **values)
    else:
        statement = (
            sa.update(track_cursors)
            .where(track_cursors.c.track == track)
            .where(track_cursors.c.seq == expected.seq)
            .where(track_cursors.c.sha256 == expected.sha256)
            .values(values)
        )
    return connection.execute(statement).rowcount == 1


def _upsert(connection: Connection, table: sa.Table, rows: Sequence[Row]) -> None:
    keys = [column.name for column in table.primary_key]
    # One row a key: Postgres refuses to write a row twice in one statement.
    newest = list({tuple(row[key] for key in keys): dict(row) for row in rows}.values())
    if newest:
        connection.execute(_Upsert(table), newest)


# Both databases say these alike. SQLAlchemy's own clauses, one of each dialect, have no key in its
# cache of compiled statements, and to compile one takes as long as to run it on a short track.
class _Create(sa.Insert):
    """An INSERT of rows that leaves the row alone that has the same key."""

    inherit_cache = True


class _Upsert(sa.Insert):
    """An INSERT of rows, each in place of the row with its key."""

    inherit_cache = True


@compiles(_Create)
def _compile_create(create: _Create, compiler: Any, **given: Any) -> str:
    return f"{compiler.visit_insert(create, **given)} ON CONFLICT DO NOTHING"


@compiles(_Upsert)
def _compile_upsert(upsert: _Upsert, compiler: Any, **given: Any) -> str:
    table, name_of = upsert.table, compiler.preparer.format_column
    keys = ", ".join(name_of(column) for column in table.primary_key)
    others = [name_of(column) for column in table.columns if not column.primary_key]
    values = ", ".join(f"{name} = excluded.{name}" for name in others)
    return f"{compiler.visit_insert(upsert, **given)} ON CONFLICT ({keys}) DO UPDATE SET {values}"


def _dumped(connection: Connection, table: sa.Table) -> list[dict[str, Json]]:
    rows = [dict(row) for row in connection.execute(sa.select(table)).mappings()]
    # Sorted here: databases order text by collations of their own.
    return sorted(rows, key=lambda row: [row[column.name] for column in table.primary_key])


def _plain(name: str, value: Any) -> Json:
    """Return a value of a query as it is on both databases."""
    if value is None:
        return None
    if name in _TIMES:
        try:
            return as_utc(value)
        except (ValueError, AttributeError) as error:
            raise LedgerError(
                f"A column {name} holds {value!r}, which is not a time. If the ledger was changed by "
                "hand, `tracks reindex` rebuilds it."
            ) from error
    if name in _BOOLEANS:
        return bool(value)
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value
