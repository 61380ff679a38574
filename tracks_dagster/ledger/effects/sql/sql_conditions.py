"""Which conditions of a query SQLite may check while it reads, so that fewer rows reach DuckDB.

DuckDB checks every condition again. So what matters is only that no row is left out that it would
take: a condition counts if it must hold of each row of the query's only table, and if SQLite compares
those values as DuckDB does. In doubt a condition is left to DuckDB alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import duckdb
import sqlalchemy as sa

from tracks_dagster.ledger.effects.database.column_types import UtcTime
from tracks_dagster.ledger.effects.database.tables import metadata
from tracks_dagster.track.records import format_time

Tree = dict[str, Any]  # of a query, as DuckDB's parser writes it
Bound = tuple[str, Tree]  # an operator of SQL, and the value on its right

_OPERATORS = {
    "COMPARE_EQUAL": "=",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
}
_TURNED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
# What a value may be made of: nothing that reads a row, or says something else the next time.
_INTERVALS = {f"to_{unit}" for unit in ("seconds", "minutes", "hours", "days", "weeks", "months")}
_FUNCTIONS = {"+", "-", "*", "now", "today", "date_trunc", "trunc", *_INTERVALS}
_NAMED_VALUES = {"current_date", "current_timestamp"}

CONDITIONS_MAX = 20  # of a query: each costs milliseconds, and SQLite takes no 1000 at once

_INTEGERS = {"TINYINT", "SMALLINT", "INTEGER", "BIGINT"}
_TIMES = {"DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Comparisons of a column with values, that every row of the answer meets.

    bounds: operators and values; a value is a part of the query's tree, without a column in it. Two
    of them, of one `between`, count together: DuckDB compares all three in one type.
    """

    column: sa.Column[Any]
    bounds: tuple[Bound, ...]


def conditions(tree: Tree) -> tuple[Condition, ...]:
    """Return the conditions of the query `tree`, where one table of the ledger is all that it reads.

    Of more than `CONDITIONS_MAX` the first ones.
    """
    select = only_select(tree)
    source = only_table(select)
    if source is None or select["where_clause"] is None:
        return ()
    table = metadata.tables.get(source["table_name"].lower())
    if table is None:  # a view: SQLite may hold a value of it in another type
        return ()
    hidden = hidden_names(select)
    found = (
        Condition(column=table.c[column], bounds=bounds)
        for column, bounds in _comparisons(select["where_clause"], source)
        if column in table.c
        and column not in hidden
        and all(_is_constant(value, hidden) for _, value in bounds)
    )
    return tuple(islice(found, CONDITIONS_MAX))


def as_sqlite(connection: duckdb.DuckDBPyConnection, condition: Condition) -> str | None:
    """Return the condition in SQLite's SQL; None where SQLite would not compare as DuckDB does.

    Raises duckdb.Error for a value that cannot be computed, which ends the transaction.
    """
    column = condition.column
    told = []
    for operator, value in condition.bounds:
        literal = _literal(connection, column, value)
        if literal is None:
            return None
        told.append(f'"{column.name}" {operator} {literal}')
    return " and ".join(told)


def _literal(
    connection: duckdb.DuckDBPyConnection, column: sa.Column[Any], tree: Tree
) -> str | None:
    """Return the value as SQLite writes it: text by its bytes, integers, times as they are stored."""
    value, kind = _sql(connection, tree), type(column.type)
    [type_name] = _row(connection, f"typeof({value})")
    if kind is sa.Text and type_name == "VARCHAR":
        [text] = _row(connection, value)
        return None if text is None or "\0" in text else _quoted(text)
    if kind is sa.BigInteger and type_name in _INTEGERS:
        [number] = _row(connection, value)
        return None if number is None else str(number)
    is_text = type_name == "VARCHAR" and tree["class"] == "CONSTANT"
    if kind is UtcTime and (type_name in _TIMES or is_text):  # '2026-01-31' becomes a time
        [microseconds] = _row(connection, f"epoch_us(cast({value} as timestamptz))")
        time = _time(microseconds)
        return None if time is None else _quoted(time)
    return None  # floats: SQLite may read one as its neighbour


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def only_select(tree: Tree) -> Tree:
    """Return the SELECT that the query is; empty for another kind of query."""
    [statement] = tree.get("statements") or [{}]
    select: Tree = statement.get("node") or {}
    return select if select.get("type") == "SELECT_NODE" else {}


def only_table(select: Tree) -> Tree | None:
    """Return the one table that is all that `select` reads, once and whole; None for anything else."""
    source: Tree = select.get("from_table") or {}
    is_one = (
        sum("cte_map" in node for node in every_node(select)) == 1  # no query within it
        and not select["cte_map"]["map"]
        and source.get("type") == "BASE_TABLE"
        and not any(source[key] for key in ("schema_name", "catalog_name", "column_name_alias"))
        and not any(each.get("sample") or each.get("at_clause") for each in (select, source))
    )
    return source if is_one else None


def hidden_names(select: Tree) -> set[str]:
    """Return the names that `select` gives to its values: one may hide a column."""
    return {str(each.get("alias")).lower() for each in select["select_list"]}


def _comparisons(where: Tree, source: Tree) -> Iterator[tuple[str, tuple[Bound, ...]]]:
    """Yield the column and the other side of each comparison that must hold."""
    if where["type"] == "CONJUNCTION_AND":
        for child in where["children"]:
            yield from _comparisons(child, source)
    elif where["type"] == "COMPARE_BETWEEN":
        if column := column_of(where["input"], source):
            yield column, ((">=", where["lower"]), ("<=", where["upper"]))
    elif operator := _OPERATORS.get(where["type"]):
        if column := column_of(where["left"], source):
            yield column, ((operator, where["right"]),)
        elif column := column_of(where["right"], source):
            yield column, ((_TURNED[operator], where["left"]),)


def column_of(side: Tree, source: Tree) -> str | None:
    """Return the name of the column that `side` is."""
    if side["class"] != "COLUMN_REF":
        return None
    *rows, column = (name.lower() for name in side["column_names"])
    return column if rows in ([], [(source["alias"] or source["table_name"]).lower()]) else None


def _is_constant(value: Tree, hidden: set[str]) -> bool:
    return all(_is_constant_part(node, hidden) for node in every_node(value) if "class" in node)


def _is_constant_part(node: Tree, hidden: set[str]) -> bool:
    match node["class"]:
        case "CONSTANT" | "CAST" | "TYPE":
            return True
        case "FUNCTION":
            return node["function_name"] in _FUNCTIONS and not node["schema"]
        case "COLUMN_REF":
            [*rows, name] = (name.lower() for name in node["column_names"])
            return not rows and name in _NAMED_VALUES - hidden
        case _:
            return False


def _sql(connection: duckdb.DuckDBPyConnection, value: Tree) -> str:
    """Return `value` as DuckDB writes it."""
    [holder] = _row(connection, "json_serialize_sql('select 1')")
    tree = json.loads(holder)
    tree["statements"][0]["node"]["select_list"] = [value]
    [sql] = _row(connection, "json_deserialize_sql(?::json)", json.dumps(tree))
    return str(sql).removeprefix("SELECT ")


def _row(connection: duckdb.DuckDBPyConnection, value: str, *parameters: str) -> Sequence[Any]:
    [row] = connection.execute(f"select {value}", parameters).fetchall()
    return tuple(row)


def _time(microseconds: int | None) -> str | None:
    """Return a time as the ledger's SQLite stores it; None for one that it cannot hold."""
    if microseconds is None:
        return None
    try:
        return format_time(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds))
    except OverflowError:
        return None


def every_node(tree: Any) -> Iterator[Tree]:
    """Yield every object of a tree of JSON, however deep."""
    left = [tree]
    while left:
        node = left.pop()
        if isinstance(node, dict):
            yield node
        children = node.values() if isinstance(node, dict) else node
        left += [child for child in children if isinstance(child, dict | list)]
