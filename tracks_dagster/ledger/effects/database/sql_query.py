"""The engine of `tracks sql`: one SELECT over the ledger, which it cannot change.

On Postgres the server answers. SQLite knows neither intervals nor timestamps, so DuckDB answers for
an embedded ledger. Both take the same text, of the same functions, and the time zone is UTC.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import adbc_driver_manager
import adbc_driver_sqlite
import duckdb
import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError

from tracks_dagster.ledger.effects.database.engine import (
    BUSY_S_MAX,
    READ_S_MAX,
    make_engine,
    reason,
    to_read,
    transaction,
)
from tracks_dagster.ledger.effects.database.schema import take_on_reader
from tracks_dagster.ledger.effects.database.sql_allowed import (
    CELLS_MAX,
    FUNCTIONS,
    Named,
    Select,
    first_line,
    parse_select,
    refused_function,
    too_large,
)
from tracks_dagster.ledger.effects.database.tables import UtcTime, metadata
from tracks_dagster.track.errors import InvalidInput, LedgerError
from tracks_dagster.track.records import Json

QueryResult = tuple[list[str], list[tuple[Json, ...]]]  # column names, rows

_COLUMN_UNKNOWN = "42703"  # SQLSTATEs of Postgres
_TOO_LONG = "57014"
_CLASSES_OF_THE_QUERY = ("0A", "21", "22", "25", "42", "57014")  # the others are of the server
BATCH_ROWS = 50_000


def run_sql(
    ledger_url: str, query: str, *, warn: Callable[[str], None] = lambda warning: None
) -> QueryResult:
    """Return the column names and rows that one SELECT gives, within 60 s.

    Values are JSON's and datetimes, in UTC where they know their zone; others come as text.
    warn: called where Postgres answers with the rights of a role that may also write.

    Raises InvalidInput for what is not one SELECT over the ledger's tables, by functions that only
    compute; LedgerError when the ledger cannot be read.
    """
    select = parse_select(query)
    engine = make_engine(ledger_url)
    if engine.dialect.name == "postgresql":
        return _on_postgres(engine, select, warn)
    return _on_sqlite(Path(engine.url.database or ""), select)


def _on_postgres(engine: Engine, select: Select, warn: Callable[[str], None]) -> QueryResult:
    try:
        columns, rows, warning = run_on_postgres(engine, select)
    except LedgerError as error:
        if (refused := _refused(error, select)) is None:
            raise
        raise InvalidInput(refused) from error
    if warning is not None:
        warn(warning)
    return columns, [tuple(map(_plain, row)) for row in rows]


def _refused(error: LedgerError, select: Select) -> str | None:
    """Return what is wrong with the query; None where the server is what failed."""
    cause = error.__cause__
    if not isinstance(cause, DBAPIError):
        return None
    state = getattr(cause.orig, "pgcode", None) or ""
    if not state.startswith(_CLASSES_OF_THE_QUERY):
        return None
    if state == _TOO_LONG:
        return _too_long()
    hint = _columns(select) if state == _COLUMN_UNKNOWN else ""
    return f"The query cannot be answered: {reason(cause)}{hint}"


def _on_sqlite(ledger: Path, select: Select) -> QueryResult:
    try:
        table = run_embedded(ledger, select)
    except duckdb.InterruptException as error:
        raise InvalidInput(_too_long()) from error
    except duckdb.Error as error:
        hint = _columns(select) if isinstance(error, duckdb.BinderException) else ""
        raise InvalidInput(f"The query cannot be answered: {first_line(error)}.{hint}") from error
    columns = [[_as_python(value) for value in column] for column in table.columns]
    return table.column_names, [tuple(map(_plain, row)) for row in zip(*columns, strict=True)]


def _as_python(value: pa.Scalar) -> Any:
    """Return a value as Python has it; a time that Python has none for as text."""
    try:
        return value.as_py()
    except (OverflowError, ValueError):
        raw = getattr(value, "value", None)  # days or microseconds since 1970
        return _INFINITIES.get(raw, str(raw)) if isinstance(raw, int) else "out of range"


# How DuckDB stores the times that never are: of a date in days, of a timestamp in microseconds.
_INFINITIES = {
    2**31 - 1: "infinity",
    -(2**31 - 1): "-infinity",
    2**63 - 1: "infinity",
    -(2**63 - 1): "-infinity",
}


def _too_long() -> str:
    return f"The query took longer than {READ_S_MAX} s; ask for less at once."


def _columns(select: Select) -> str:
    return "".join(f" {t.name} has {', '.join(t.columns.keys())}." for t in select.tables)


def _plain(value: Any) -> Json:
    """Return one value as it is on both databases."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)  # JSON has no word for it
        case None | bool() | int() | float() | str():
            return value
        case datetime():
            return value if value.tzinfo is None else value.astimezone(UTC)
        case Decimal() if not value.is_finite():
            return str(value)
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case list():
            return [_plain(item) for item in value]
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case _:
            return str(value)


# --- SQLite, by DuckDB in memory ------------------------------------------------------------------
#
# The tables and views that the query names are copied in as arrow, the columns that it names whole,
# from one snapshot; SQLite itself computes the views. DuckDB can reach nothing else: no files, no
# network, no variables of this process.


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
# The literals come in a row before all others: ADBC takes a column's type from the values it meets
# first, and a column that starts with NULLs would get the wrong one.
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
            f"Cannot read the ledger at {ledger}: {error}. `tracks reindex` rebuilds it."
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


# --- Postgres, in a transaction that is always rolled back ----------------------------------------
#
# A read-only transaction alone holds nothing back: functions that write large objects, send notices or
# read the server's files work in one, and a role's own settings decide how a text is read. So what the
# query names is checked before (`sql_allowed`), the session's settings are set here, the text is opened
# as one cursor, of which the server itself refuses two statements, and a role that may only read is
# taken on where there is one.

# What a role or a database may have set otherwise, and how a text is read or written depends on.
_SETTINGS = {
    "standard_conforming_strings": "on",
    "backslash_quote": "safe_encoding",
    "transform_null_equals": "off",
    "array_nulls": "on",
    "TimeZone": "UTC",
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "postgres",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "cursor_tuple_fraction": "1",
}
_SET = sa.text("select pg_catalog.set_config(:name, :value, true)")
# The ledger lives in the URL's default schema; what a role has put before it is left out.
_SEARCH = "pg_catalog, {schema}, pg_temp"

# `x.name` calls a function where x is not a row; and a function or operator of the ledger's schema may
# be taken for one of Postgres' own. Its owner's or a superuser's are meant to be there.
_CALLS = sa.text("""
    select proname from pg_proc where pronamespace = cast('pg_catalog' as regnamespace)
        and proname in (select json_array_elements_text(cast(:attributes as json)))
    union
    select proname from pg_proc join pg_roles on pg_roles.oid = proowner
    where pronamespace = cast(quote_ident(:schema) as regnamespace)
        and not rolsuper and rolname <> current_user
        and proname in (select json_array_elements_text(cast(:names as json)))
    union
    select oprname from pg_operator join pg_roles on pg_roles.oid = oprowner
    where oprnamespace = cast(quote_ident(:schema) as regnamespace)
        and not rolsuper and rolname <> current_user
    order by 1
""")

# The text reaches the server in digits: psycopg2 quotes as the session was when it began.
_HAND_OVER = "select set_config('tracks.query', convert_from(decode('{}', 'hex'), 'UTF8'), true)"
_OPEN = """
do $tracks$
declare answer refcursor := 'tracks_answer';
begin open answer for execute current_setting('tracks.query'); end
$tracks$ language plpgsql
"""


def run_on_postgres(
    engine: Engine, select: Select
) -> tuple[list[str], list[tuple[Any, ...]], str | None]:
    """Return column names, rows, and a warning where no role could be taken on that only reads.

    Raises DBAPIError when the server refuses the query, InvalidInput for what may not be called and
    for an answer of more than `CELLS_MAX` values, LedgerError when the server cannot be reached.
    """
    with transaction(engine, "read", write=False) as connection:
        schema = str(connection.scalar(sa.text("select pg_catalog.current_schema()")))
        quoted = connection.dialect.identifier_preparer.quote_identifier(schema)
        _set(connection, {"search_path": _SEARCH.format(schema=quoted)})
        _check_calls(connection, schema, select.named)
        warning = take_on_reader(connection, schema)
        _set(connection, _SETTINGS)
        connection.exec_driver_sql(_HAND_OVER.format(select.query.encode().hex()))
        connection.exec_driver_sql(_OPEN)
        columns = list(connection.exec_driver_sql("fetch 0 from tracks_answer").keys())
        rows_max = CELLS_MAX // max(len(columns), 1)
        result = connection.exec_driver_sql(f"fetch {rows_max + 1} from tracks_answer")
        rows = [tuple(row) for row in result]
    if len(rows) > rows_max:
        raise InvalidInput(too_large(len(columns)))
    return columns, rows, warning


def _set(connection: Connection, settings: Mapping[str, str]) -> None:
    for name, value in settings.items():
        connection.execute(_SET, {"name": name, "value": value})


def _check_calls(connection: Connection, schema: str, named: Named) -> None:
    columns = {column.name for table in metadata.tables.values() for column in table.columns}
    asked = {
        "schema": schema,
        "attributes": json.dumps(sorted(named.attributes - columns - FUNCTIONS)),
        "names": json.dumps(sorted(named.attributes | named.functions)),
    }
    for name in connection.scalars(_CALLS, asked):
        raise refused_function(f"{name}, which the query would call on this server")
