"""Column types that read back the same from SQLite and Postgres."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine

from tracks_dagster.track.records import format_time, parse_time


class UtcTime(TypeDecorator[datetime]):
    """An aware datetime in UTC: timestamptz on Postgres; on SQLite text, which sorts by time."""

    impl = sa.String
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Choose what the database stores."""
        if dialect.name == "postgresql":
            return dialect.type_descriptor(postgresql.TIMESTAMP(timezone=True))
        return dialect.type_descriptor(sa.String())

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        """Turn a datetime into what the database stores."""
        if value is None or dialect.name == "postgresql":
            return value
        return format_time(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        """Turn what the database stores into a datetime."""
        return None if value is None else as_utc(value)


def as_utc(value: datetime | str) -> datetime:
    """Return the aware UTC datetime of a column of `UtcTime`, in whichever form it was read."""
    return parse_time(value) if isinstance(value, str) else value.astimezone(UTC)
