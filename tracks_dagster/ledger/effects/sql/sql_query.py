"""The engine of `tracks sql`: one SELECT over the ledger, which it cannot change.

On Postgres the server answers. SQLite knows neither intervals nor timestamps, so DuckDB answers for
an embedded ledger. Both take the same text, of the same functions, and the time zone is UTC.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError

from tracks_dagster.ledger.effects.database.engine import READ_S_MAX, make_engine, reason
from tracks_dagster.ledger.effects.sql.embedded_sql import run_embedded
from tracks_dagster.ledger.effects.sql.postgres_sql import run_on_postgres
from tracks_dagster.ledger.effects.sql.sql_parse import Select, first_line, parse_select
from tracks_dagster.track.errors import InvalidInput, LedgerError
from tracks_dagster.track.records import Json

Answer = tuple[list[str], list[tuple[Json, ...]]]  # column names, rows

_COLUMN_UNKNOWN = "42703"  # SQLSTATEs of Postgres
_TOO_LONG = "57014"
_CLASSES_OF_THE_QUERY = ("0A", "21", "22", "25", "42", "57014")  # the others are of the server


def run_sql(
    ledger_url: str, query: str, *, warn: Callable[[str], None] = lambda warning: None
) -> Answer:
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


def _on_postgres(engine: Engine, select: Select, warn: Callable[[str], None]) -> Answer:
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


def _on_sqlite(ledger: Path, select: Select) -> Answer:
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
