"""What the ledger's tables are made of: one `metadata`, and columns by whether they may be null."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, MetaData
from sqlalchemy.types import TypeEngine

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
