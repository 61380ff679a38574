"""What a query of `tracks sql` is: one SELECT, and which of the ledger's tables, views and columns it
names.

DuckDB's parser tells; nothing is executed here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import duckdb
import sqlalchemy as sa

from tracks_dagster.ledger.effects.database.tables import metadata
from tracks_dagster.ledger.effects.database.views import views
from tracks_dagster.ledger.effects.sql.sql_allowed import Named, check_allowed, every_node
from tracks_dagster.ledger.sql_text import comparable_text
from tracks_dagster.track.errors import InvalidInput

CELLS_MAX = 10_000_000  # rows × columns of an answer: as values of Python, about a gigabyte

# Parts of a query that stand for columns without naming them.
_NAMELESS = {"STAR", "NATURAL", "POSITIONAL_REFERENCE"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Select:
    """One SELECT, of what is allowed. query: without comments. tables: those of the ledger, and its
    views, that it may read.

    words: every name and literal in it, in lower case; None when any column may be read. named:
    functions and attributes in it.
    """

    query: str
    tables: tuple[sa.Table, ...]
    words: frozenset[str] | None
    named: Named

    def columns(self, table: sa.Table) -> list[sa.Column[Any]]:
        """Return the columns of `table` that the query may read, at least one."""
        named = [c for c in table.columns if self.words is None or c.name in self.words]
        return named or list(table.primary_key)[:1]


def parse_select(query: str) -> Select:
    """Return what `query` is; raises InvalidInput when it is not one SELECT of what is allowed."""
    query, exact_names = comparable_text(query)
    with closing(duckdb.connect()) as connection:
        try:
            statements = connection.extract_statements(query)
        except duckdb.Error as error:
            raise InvalidInput(f"The query cannot be read: {first_line(error)}.") from error
        if len(statements) != 1 or statements[0].type is not duckdb.StatementType.SELECT:
            found = ", ".join(s.type.name for s in statements) or "nothing"
            raise InvalidInput(
                f"`tracks sql` answers one SELECT and changes nothing; got: {found}."
            )
        [(text,)] = connection.execute("select json_serialize_sql(?::varchar)", [query]).fetchall()
    try:
        tree = json.loads(text)
    except RecursionError as error:
        raise InvalidInput(
            "The query cannot be read: an expression in it is nested too deeply, as "
            "`1 + 1 + …` of hundreds of terms is; compute the value first, or ask in parts."
        ) from error
    nodes = list(every_node(tree))
    words = {word.lower() for node in nodes for word in _words(node)}
    known = (*metadata.sorted_tables, *views.sorted_tables)
    tables = tuple(table for table in known if table.name in words)
    named = check_allowed(tree, exact_names)
    return Select(
        query=query,
        tables=tables,
        words=None if _reads_unnamed(nodes) else frozenset(words),
        named=named,
    )


def too_large(columns: int) -> str:
    """Say that an answer has too many rows of so many columns."""
    return (
        f"The answer has more than {CELLS_MAX // columns:,} rows of {columns} columns; ask for fewer "
        "columns, for sums, or in parts (order by … limit … offset …)."
    )


def first_line(error: duckdb.Error) -> str:
    """Return what DuckDB says, without the kind of error and the picture below it."""
    line = str(error).strip().splitlines()[0]
    return line.partition("Error: ")[2].rstrip("!.") or line


def _words(node: dict[str, Any]) -> Iterator[str]:
    for value in node.values():
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            yield from (item for item in value if isinstance(item, str))


def _reads_unnamed(nodes: list[dict[str, Any]]) -> bool:
    """Tell whether a column may be read that the query does not name."""
    if any(node.get("error") or _NAMELESS & {*map(str, node.values())} for node in nodes):
        return True
    tables = [node for node in nodes if node.get("type") == "BASE_TABLE"]
    if any(table.get("column_name_alias") for table in tables):
        return True  # from notes as n(a, b, c): renamed by position
    rows = {str(table.get(key)).lower() for table in tables for key in ("alias", "table_name")}
    names = [node["column_names"] for node in nodes if "column_names" in node]
    return any(len(path) == 1 and path[0].lower() in rows for path in names)  # a row as a value
