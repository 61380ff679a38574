"""What the ledger's tables are made of: one `metadata`, and columns by whether they may be null."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Double, MetaData, Text
from sqlalchemy.types import TypeEngine

from tracks_dagster.ledger.effects.database.column_types import UtcTime
from tracks_dagster.ledger.facts.fact import Fact, Type

metadata = MetaData()

ColumnType = type[TypeEngine[Any]]


def key(name: str, kind: ColumnType) -> Column[Any]:
    """Return a column of the primary key."""
    return Column(name, kind, primary_key=True, autoincrement=False)


def must(name: str, kind: ColumnType) -> Column[Any]:
    """Return a column that is never null."""
    return Column(name, kind, nullable=False)


def may(name: str, kind: ColumnType) -> Column[Any]:
    """Return a column that is null where nothing is known."""
    return Column(name, kind, nullable=True)


_KINDS: Mapping[Type, ColumnType] = {
    Type.INTEGER: BigInteger,
    Type.REAL: Double,
    Type.TRUTH: Boolean,
    Type.TIME: UtcTime,
}


def columns_of(facts: Sequence[Fact[Any]]) -> Iterator[Column[Any]]:
    """Yield the column of each fact that has one."""
    for each in facts:
        kind = _KINDS.get(each.type, Text)
        if each.has_column:
            make = key if each.is_key else may if each.is_nullable else must
            yield make(each.column, kind)
