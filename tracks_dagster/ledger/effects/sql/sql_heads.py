"""How few rows of a table a query can do with: `select … from … order by … limit …` and no more.

DuckDB orders and counts again. So SQLite may leave out what comes after the last row that is asked for,
if it orders as DuckDB does. In doubt all rows are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import sqlalchemy as sa

from tracks_dagster.ledger.effects.database.tables import metadata
from tracks_dagster.ledger.effects.sql.sql_conditions import (
    Tree,
    column_of,
    every_node,
    hidden_names,
    only_select,
    only_table,
)

ROWS_MAX = 1_000_000  # of a head: for more nothing is gained
# What may stand between `select` and `from`: nothing that makes one row of several, or several of one.
_CLASSES = {"COLUMN_REF", "STAR", "CONSTANT", "CAST", "TYPE"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The first rows of one table or view, in some order of its columns.

    table: its name. order: in SQLite's SQL. rows: how many, those that an offset skips included.
    """

    table: str
    order: tuple[str, ...]
    rows: int

    @property
    def sql(self) -> str:
        """What follows the table in SQLite's SQL."""
        order = f"order by {', '.join(self.order)} " if self.order else ""
        return f"{order}limit {self.rows}"


def head(tree: Tree) -> Head | None:
    """Return the head that is all that the query `tree` needs; None where it may need more."""
    select = only_select(tree)
    source = only_table(select)
    if source is None or not _is_plain(select):
        return None
    *orders, limit = select["modifiers"] or [{}]
    rows = _rows(limit)
    if rows is None or any(each["type"] != "ORDER_MODIFIER" for each in orders):
        return None
    table, hidden = source["table_name"].lower(), hidden_names(select)
    order = [
        _order(each, metadata.tables.get(table), source, hidden)
        for modifier in orders
        for each in modifier["orders"]
    ]
    known = tuple(each for each in order if each is not None)
    return Head(table=table, order=known, rows=rows) if len(known) == len(order) else None


def _is_plain(select: Tree) -> bool:
    """Tell whether each row of the table gives one of the answer, by itself."""
    return (
        not any(
            select[key]
            for key in ("where_clause", "group_expressions", "group_sets", "having", "qualify")
        )
        and select["aggregate_handling"] == "STANDARD_HANDLING"
        and all(_is_plain_part(node) for node in _parts(select["select_list"]))
    )


def _is_plain_part(node: Tree) -> bool:
    is_renamed = node.get("replace_list") or node.get(
        "rename_list"
    )  # then `order by` may mean that
    return node["class"] in _CLASSES and not is_renamed


def _parts(select_list: list[Tree]) -> Iterator[Tree]:
    return (node for each in select_list for node in every_node(each) if "class" in node)


def _rows(limit: Tree) -> int | None:
    """Return the number of rows up to the last that is asked for."""
    if limit.get("type") != "LIMIT_MODIFIER" or limit["limit_type"] != "ROW_COUNT":
        return None
    counts = [each.get("literal") or {} for each in (limit["limit"], limit["offset"]) if each]
    if not limit["limit"] or any(each.get("kind") != "INTEGER" for each in counts):
        return None
    rows = sum(int(each["text"]) for each in counts)
    return rows if 0 <= rows <= ROWS_MAX else None


def _order(each: Tree, table: sa.Table | None, source: Tree, hidden: set[str]) -> str | None:
    """Return a term of the order as SQLite writes it; None for what is no column of the table."""
    column = column_of(each["expression"], source)
    if table is None or column is None or column not in table.c or column in hidden:
        return None
    is_down = each["type"] == "DESCENDING"
    nulls = "first" if is_down else "last"  # as Postgres has them, and DuckDB is told to
    if each["null_order"] != "ORDER_DEFAULT":
        nulls = each["null_order"].removeprefix("NULLS ").lower()
    return f'"{column}" {"desc" if is_down else "asc"} nulls {nulls}'
