"""Fills empty ledgers with a generated history, in bulk and by several processes.

What is written are the projector's rows. Only the way into the tables is a shorter one: large
transactions, on Postgres COPY with the indexes made afterwards.
"""

from __future__ import annotations

import io
import multiprocessing
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import make_url

from benchmarks.history_fold import rows_of
from benchmarks.history_others import other_tracks
from benchmarks.history_plan import Fleet
from benchmarks.history_tracks import run_tracks
from tracks_dagster.ledger.effects.database import open_ledger
from tracks_dagster.ledger.effects.database.tables import metadata
from tracks_dagster.ledger.ports import Row
from tracks_dagster.track.records import format_time

RUNS_OF_CHUNK = 50  # folded and written at once: about 12 000 records, 100 MB
BUSY_S_MAX = 600.0  # for the other process to write its chunk
TEXT_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})  # of COPY

Rows = Mapping[str, Sequence[Row]]


def load(fleet: Fleet, urls: Sequence[str], *, processes: int = 2) -> None:
    """Fill the empty databases at `urls`, SQLite or Postgres, with the fleet's whole history."""
    for url in urls:
        open_ledger(url)
    indexes = {url: _drop_indexes(url) for url in urls if _is_postgres(url)}
    first = rows_of(other_tracks(fleet))
    for url in urls:
        _write(url, first)
    context = multiprocessing.get_context("spawn")  # a fork would share what the parent opened
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        write = partial(_load_chunk, fleet, tuple(urls))
        for done in as_completed(pool.submit(write, chunk) for chunk in _chunks(fleet.run_count)):
            done.result()
    for url, statements in indexes.items():
        _make_indexes(url, statements)


def _chunks(run_count: int) -> Iterator[range]:
    for first in range(0, run_count, RUNS_OF_CHUNK):
        yield range(first, min(first + RUNS_OF_CHUNK, run_count))


def _load_chunk(fleet: Fleet, urls: Sequence[str], indices: range) -> None:
    rows = rows_of(track for _, track in run_tracks(fleet, indices))
    for url in urls:
        _write(url, rows)


def _write(url: str, rows: Rows) -> None:
    if _is_postgres(url):
        _copy(url, rows)
    else:
        _insert(Path(str(make_url(url).database)), rows)


def _insert(path: Path, rows: Rows) -> None:
    """Insert into SQLite, in one transaction."""
    connection = sqlite3.connect(path, timeout=BUSY_S_MAX, isolation_level=None)
    with closing(connection):
        connection.execute("pragma synchronous = off")
        connection.execute("begin immediate")
        for name, of_table in rows.items():
            columns = [column.name for column in metadata.tables[name].columns]
            holes = ", ".join("?" * len(columns))
            statement = f"insert into {name} ({', '.join(columns)}) values ({holes})"
            connection.executemany(statement, _values(name, columns, of_table, _for_sqlite))
        connection.execute("commit")


def _copy(url: str, rows: Rows) -> None:
    """Copy into Postgres, in one transaction."""
    connection = sa.create_engine(url).raw_connection()
    with closing(connection):
        cursor: Any = connection.cursor()  # psycopg2's own
        for name, of_table in rows.items():
            columns = [column.name for column in metadata.tables[name].columns]
            lines = ("\t".join(row) for row in _values(name, columns, of_table, _for_copy))
            text = io.StringIO("\n".join(lines) + "\n" if of_table else "")
            cursor.copy_expert(f"copy {name} ({', '.join(columns)}) from stdin", text)
        connection.commit()


def _values(
    name: str, columns: Sequence[str], rows: Sequence[Row], one: Any
) -> Iterator[list[Any]]:
    """Yield the values of each row in the order of the columns; of one key the last row counts."""
    keys = [column.name for column in metadata.tables[name].primary_key]
    newest = {tuple(row[key] for key in keys): row for row in rows}
    for row in newest.values():
        yield [one(row[column]) for column in columns]


def _for_sqlite(value: Any) -> Any:
    return format_time(value) if isinstance(value, datetime) else value


def _for_copy(value: Any) -> str:
    if isinstance(value, str):
        return value.translate(TEXT_ESCAPES)
    if value is None:
        return "\\N"
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _is_postgres(url: str) -> bool:
    return make_url(url).get_backend_name() == "postgresql"


def _drop_indexes(url: str) -> list[str]:
    """Drop every index that is no key; return the statements that make them again."""
    found = sa.text(
        "select indexname, indexdef from pg_indexes where schemaname = current_schema() "
        "and indexname not in (select conname from pg_constraint)"
    )
    with sa.create_engine(url).begin() as connection:
        rows = connection.execute(found).all()
        for row in rows:
            connection.exec_driver_sql(f"drop index {row.indexname}")
    return [row.indexdef for row in rows]


def _make_indexes(url: str, statements: Sequence[str]) -> None:
    """Make the indexes, and do at once what autovacuum does in its time."""
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
        connection.exec_driver_sql("vacuum analyze")
