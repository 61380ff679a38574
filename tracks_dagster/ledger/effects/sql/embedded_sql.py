"""Answers one SELECT over a SQLite ledger with DuckDB, in memory.

The tables and views that the query names are copied in as arrow, the columns that it names whole,
from one snapshot; SQLite itself computes the views. DuckDB can reach nothing else: no files, no
network, no variables of this process.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import adbc_driver_manager
import adbc_driver_sqlite
import duckdb
import pyarrow as pa
import sqlalchemy as sa

from tracks_dagster.ledger.effects.database.column_types import UtcTime
from tracks_dagster.ledger.effects.database.engine import BUSY_S_MAX, READ_S_MAX
from tracks_dagster.ledger.effects.database.sqlite_reading import to_read
from tracks_dagster.ledger.effects.sql.sql_parse import CELLS_MAX, Select, too_large
from tracks_dagster.track.errors import InvalidInput, LedgerError

BATCH_ROWS = 50_000

_AS_POSTGRES = "NULLS_LAST_ON_ASC_FIRST_ON_DESC"
# An extension that a type or a function needs would be fetched from the network, into the home.
_CONFIG: dict[str, Any] = {
    "python_enable_replacements": False,
    "enable_external_access": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "temp_directory": "",
}

# SQL type of the ledger → a literal that SQLite gives this type, and arrow's type for DuckDB.
# The literals stand in a row before all others: ADBC takes a column's type from the values it meets
# first, and a column that begins with NULLs would get the wrong one.
_ARROW: dict[type[Any], tuple[str, pa.DataType]] = {
    sa.Text: ("''", pa.string()),
    sa.BigInteger: ("0", pa.int64()),
    sa.Double: ("0.0", pa.float64()),
    sa.Boolean: ("0", pa.bool_()),
    UtcTime: ("'2000-01-01T00:00:00.000000Z'", pa.timestamp("us", "UTC")),
}


def run_embedded(ledger: Path, select: Select) -> pa.Table:
    """Return what `select` gives over the ledger in the file `ledger`.

    Raises duckdb.Error when DuckDB refuses the query, its InterruptException after 60 s; LedgerError
    when the file cannot be read; InvalidInput for an answer of more than `CELLS_MAX` values.
    """
    with closing(duckdb.connect(config=_CONFIG)) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(f"SET default_null_order = '{_AS_POSTGRES}'")
        connection.execute("SET lock_configuration = true")
        for name, rows in _read(ledger, select).items():
            connection.register(name, rows)
        with _time_limit(connection):
            return _answer(connection.sql(select.query))


def _answer(query: duckdb.DuckDBPyRelation) -> pa.Table:
    """Return the rows, which are counted while DuckDB computes them."""
    batches, rows_max = [], CELLS_MAX // len(query.columns)
    try:
        with query.to_arrow_reader(BATCH_ROWS) as reader:
            for batch in reader:
                batches.append(batch)
                rows_max -= batch.num_rows
                if rows_max < 0:
                    raise InvalidInput(too_large(len(query.columns)))
            return pa.Table.from_batches(batches, reader.schema)
    except OSError as error:  # one of DuckDB's on the way: of its kind only the text is left
        is_late = "INTERRUPT Error" in str(error)
        raise (duckdb.InterruptException if is_late else duckdb.Error)(str(error)) from error


def _read(ledger: Path, select: Select) -> dict[str, pa.Table]:
    """Return the tables that `select` may read, from one snapshot of the file."""
    reading = to_read(ledger)
    try:
        # Not by the driver's own `dbapi`, which imports polars and pandas: half a second.
        with (
            adbc_driver_sqlite.connect(reading.uri) as database,
            adbc_driver_manager.AdbcConnection(database) as connection,
        ):
            _fetch(connection, f"PRAGMA busy_timeout = {BUSY_S_MAX * 1000}")
            connection.set_autocommit(False)
            tables = {table.name: _read_table(connection, table, select) for table in select.tables}
        reading.check_unchanged()
        return tables
    except (adbc_driver_manager.Error, pa.ArrowException, OSError) as error:
        raise LedgerError(
            f"Cannot read the ledger at {ledger}: {error}. `tracks reindex` builds it anew."
        ) from error


def _read_table(
    connection: adbc_driver_manager.AdbcConnection, table: sa.Table, select: Select
) -> pa.Table:
    columns = select.columns(table)
    kinds = [_ARROW[type(column.type)] for column in columns]
    first = ", ".join(f'{kind[0]} as "{c.name}"' for c, kind in zip(columns, kinds, strict=True))
    rest = ", ".join(f'"{column.name}"' for column in columns)
    rows = _fetch(connection, f"select {first} union all select {rest} from {table.name}")
    schema = pa.schema([(c.name, kind[1]) for c, kind in zip(columns, kinds, strict=True)])
    return rows.slice(1).cast(schema)


def _fetch(connection: adbc_driver_manager.AdbcConnection, sql: str) -> pa.Table:
    with adbc_driver_manager.AdbcStatement(connection) as statement:
        statement.set_sql_query(sql)
        stream, _ = statement.execute_query()
        return pa.RecordBatchReader.from_stream(stream).read_all()


@contextmanager
def _time_limit(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    timer = threading.Timer(READ_S_MAX, connection.interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
