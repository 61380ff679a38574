"""Answers one SELECT over a ledger on Postgres, in a transaction that is always rolled back.

A read-only transaction alone holds nothing back: functions that write large objects, send notices or
read the server's files work in one, and a role's own settings decide how a text is read. So what the
query names is checked before (`sql_allowed`), the session's settings are set here, the text is opened
as one cursor, of which the server itself refuses two statements, and a role that may only read is
taken on where there is one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from tracks_dagster.ledger.effects.database.engine import transaction
from tracks_dagster.ledger.effects.database.reader_role import take_on_reader
from tracks_dagster.ledger.effects.database.tables import metadata
from tracks_dagster.ledger.effects.sql.sql_allowed import FUNCTIONS, Named, refused_function
from tracks_dagster.ledger.effects.sql.sql_parse import CELLS_MAX, Select, too_large
from tracks_dagster.track.errors import InvalidInput

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

# `x.name` calls a function where x is no row; and a function or operator of the ledger's schema may be
# taken for one of Postgres' own. Its owner's or a superuser's are what the database is meant to have.
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
