"""The engine of `tracks sql`: one SELECT over the ledger, which it cannot change.

On Postgres the server answers. SQLite knows neither intervals nor timestamps, so DuckDB answers for
an embedded ledger. Both take the same text, and the time zone is UTC.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError

from tracks_dagster.adapters.embedded_sql import run_embedded
from tracks_dagster.adapters.ledger.engine import READ_S_MAX, make_engine, reason, transaction
from tracks_dagster.adapters.ledger.tables import metadata
from tracks_dagster.adapters.ledger.views import views
from tracks_dagster.adapters.sql_parse import Select, first_line, parse_select
from tracks_dagster.core.errors import InvalidInput
from tracks_dagster.core.records import Json

Answer = tuple[list[str], list[tuple[Json, ...]]]  # column names, rows

_TABLE_UNKNOWN = "42P01"  # SQLSTATEs of Postgres
_COLUMN_UNKNOWN = "42703"
_TOO_LONG = "57014"
_CLASSES_OF_THE_QUERY = ("0A", "21", "22", "25", "42", "57014")  # the others are of the server


def run_sql(ledger_url: str, query: str) -> Answer:
    """Return the column names and rows that one SELECT gives, within 60 s.

    Values are JSON's and datetimes, in UTC where they know their zone; others come as text.

    Raises InvalidInput for what is not one SELECT over the ledger's tables, LedgerError when the
    ledger cannot be read.
    """
    select = parse_select(query)
    engine = make_engine(ledger_url)
    if engine.dialect.name == "postgresql":
        return _on_postgres(engine, select)
    return _on_sqlite(Path(engine.url.database or ""), select)


def _on_postgres(engine: Engine, select: Select) -> Answer:
    with transaction(engine, "read", write=False) as connection:
        connection.exec_driver_sql("SET LOCAL TimeZone = 'UTC'")
        try:
            result = connection.execution_options(no_parameters=True).exec_driver_sql(select.query)
            return list(result.keys()), [tuple(map(_plain, row)) for row in result]
        except DBAPIError as error:
            state = getattr(error.orig, "pgcode", None) or ""
            if not state.startswith(_CLASSES_OF_THE_QUERY):
                raise
            if state == _TOO_LONG:
                raise InvalidInput(_too_long()) from error
            hint = ""
            if state == _TABLE_UNKNOWN:
                hint = _tables()
            elif state == _COLUMN_UNKNOWN:
                hint = _columns(select)
            raise InvalidInput(f"The query cannot be answered: {reason(error)}{hint}") from error


def _on_sqlite(ledger: Path, select: Select) -> Answer:
    try:
        table = run_embedded(ledger, select)
    except duckdb.InterruptException as error:
        raise InvalidInput(_too_long()) from error
    except duckdb.Error as error:
        hint = ""
        if isinstance(error, duckdb.CatalogException):
            hint = _tables()
        elif isinstance(error, duckdb.BinderException):
            hint = _columns(select)
        raise InvalidInput(f"The query cannot be answered: {first_line(error)}.{hint}") from error
    columns = [column.to_pylist() for column in table.columns]
    return table.column_names, [tuple(map(_plain, row)) for row in zip(*columns, strict=True)]


def _too_long() -> str:
    return f"The query took longer than {READ_S_MAX} s; ask for less at once."


def _tables() -> str:
    tables, made = ", ".join(sorted(metadata.tables)), ", ".join(sorted(views.tables))
    return f" The ledger has the tables {tables} and the views {made}."


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
