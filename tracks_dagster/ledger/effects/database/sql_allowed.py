"""What a query of `tracks sql` may be: one SELECT of the ledger's tables, views and known functions.

A read-only transaction is not a wall: on Postgres functions write files and large objects, send
notices, hold locks and read other files in one. So what is not listed here is refused, by name and as
parsed, before anything is executed; and so is a form of the language that is not known here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import duckdb
import sqlalchemy as sa

from tracks_dagster.ledger.effects.database.tables import metadata, views
from tracks_dagster.track.errors import InvalidInput

Tree = dict[str, Any]  # of a query, as DuckDB's parser writes it

# Those that people write, by subject. Each only computes, on both databases where both have it.
_FUNCTIONS = """
    count sum avg min max any_value first last bool_and bool_or every string_agg array_agg list
    stddev stddev_pop stddev_samp variance var_pop var_samp corr covar_pop covar_samp
    regr_slope regr_intercept regr_r2 median mode quantile quantile_cont quantile_disc
    percentile_cont percentile_disc approx_quantile approx_count_distinct arg_max arg_min
    max_by min_by count_if histogram json_agg jsonb_agg json_object_agg jsonb_object_agg
    row_number rank dense_rank percent_rank cume_dist ntile lag lead first_value last_value nth_value
    coalesce nullif ifnull if greatest least row typeof pg_typeof
    abs sign round floor ceil ceiling trunc mod power pow sqrt cbrt exp ln log log2 log10
    pi degrees radians sin cos tan asin acos atan atan2 isnan isinf isfinite random width_bucket
    lower upper initcap length char_length character_length octet_length strlen substr substring
    left right trim ltrim rtrim btrim lpad rpad repeat reverse replace translate overlay position
    strpos instr contains starts_with ends_with prefix suffix concat concat_ws format split_part
    string_split string_to_array regexp_matches regexp_full_match regexp_extract regexp_replace
    regexp_match regexp_split_to_array regexp_count regexp_like regexp_substr ascii chr md5 sha256
    to_hex levenshtein to_char to_number bar
    now today current_date current_timestamp transaction_timestamp date_trunc date_part date_diff
    datediff age make_date make_time make_timestamp make_timestamptz make_interval to_timestamp to_date
    strftime strptime epoch epoch_ms epoch_us justify_hours justify_days justify_interval time_bucket
    date_bin timezone year quarter month week day hour minute second dayofweek isodow dayname
    monthname to_years to_months to_weeks to_days to_hours to_minutes to_seconds to_milliseconds
    to_microseconds
    json_extract json_extract_string json_extract_path json_extract_path_text jsonb_extract_path
    jsonb_extract_path_text json_array_length jsonb_array_length json_keys json_type json_typeof
    jsonb_typeof json_valid to_json to_jsonb row_to_json json_build_object jsonb_build_object
    json_build_array jsonb_build_array json_object json_array
    array_length cardinality array_to_string array_position array_contains list_contains list_sort
    list_distinct list_value list_aggregate len unnest generate_series range generate_subscripts
    json_each json_array_elements json_array_elements_text jsonb_each jsonb_array_elements
    jsonb_array_elements_text json_object_keys jsonb_object_keys
"""
FUNCTIONS = frozenset(_FUNCTIONS.split())
# Those that DuckDB's parser makes of signs and words: `like … escape`, `{…}`, `x[1]`.
_OF_THE_PARSER = {
    *("like_escape", "not_like_escape", "ilike_escape", "not_ilike_escape", "count_star"),
    *("struct_pack", "list_extract", "array_extract", "array_slice", "list_slice"),
}
_TYPES = """
    boolean bool smallint integer int bigint int2 int4 int8 tinyint hugeint real float float4 float8
    double decimal numeric text varchar char bpchar string date time timestamp timestamptz interval
    json jsonb uuid list array
"""
TYPES = {*_TYPES.split(), "timestamp with time zone", "time with time zone", "double precision"}

_EXPRESSIONS = {
    *("CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "BETWEEN"),
    *(
        "FUNCTION",
        "LAMBDA",
        "OPERATOR",
        "POSITIONAL_REFERENCE",
        "STAR",
        "SUBQUERY",
        "TYPE",
        "WINDOW",
    ),
}
# `(x).name` calls a function of Postgres by that name.
_OPERATORS_REFUSED = {"STRUCT_EXTRACT"}
_QUERIES = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
_SOURCES = {"BASE_TABLE", "SUBQUERY", "JOIN", "EMPTY", "TABLE_FUNCTION", "EXPRESSION_LIST"}
_MODIFIERS = {
    *("DISTINCT_MODIFIER", "ORDER_MODIFIER", "LIMIT_MODIFIER", "LIMIT_PERCENT_MODIFIER"),
    *("ORDER_DEFAULT", "ASCENDING", "DESCENDING"),
}
_FORMS = _QUERIES | _SOURCES | _MODIFIERS
_DESCRIBED = {"DESCRIBE", "SUMMARY"}  # `describe notes`, `summarize notes`, of DuckDB


_READABLE = frozenset({*metadata.tables, *views.tables})
CELLS_MAX = 10_000_000  # rows × columns of an answer: as values of Python, about a gigabyte
# Parts of a query that stand for columns without naming them.
_NAMELESS = {"STAR", "NATURAL", "POSITIONAL_REFERENCE"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What a query names. attributes: each `name` of an `x.name`, where Postgres may see a call."""

    functions: frozenset[str]
    attributes: frozenset[str]


def check_allowed(tree: Tree, exact_names: frozenset[str]) -> Named:
    """Return what the query `tree` names; raises InvalidInput for what is not allowed to it.

    exact_names: those in quotes with upper case.
    """
    functions: set[str] = set()
    attributes: set[str] = set()
    for node in every_node(tree):
        _check_form(node)
        if function := str(node.get("function_name") or ""):
            _check_function(node, function, exact_names)
            functions.add(function)
        if names := node.get("column_names"):
            attributes.update(_attribute(names))
        if node.get("class") == "TYPE":
            _check_type(node)
    for name in _unreadable(tree.get("statements"), exact_names):
        raise InvalidInput(
            f"The query reads {name}, which does not exist in the ledger. The ledger has the tables "
            f"{', '.join(sorted(metadata.tables))} and the views {', '.join(sorted(views.tables))}; "
            "name them without a schema and in lower case. For anything else ask the database itself."
        )
    return Named(functions=frozenset(functions), attributes=frozenset(attributes))


def refused_function(function: str) -> InvalidInput:
    """Return the error for a function that may not be called."""
    return InvalidInput(
        f"`tracks sql` does not call {function}: it may do more than compute. The functions that it "
        f"calls are {', '.join(sorted(FUNCTIONS))}; and all operators. Ask for the columns, with "
        "--json, and compute further on your side; or ask the database itself, for example with psql."
    )


def _check_form(node: Tree) -> None:
    """Raise InvalidInput for a part of the language that is not known to read only."""
    form, kind = node.get("class"), node.get("type")
    if form is not None:
        is_known = form in _EXPRESSIONS and kind not in _OPERATORS_REFUSED
    elif kind == "SHOW_REF":
        is_known = node.get("show_type") in _DESCRIBED
    else:
        is_known = not isinstance(kind, str) or kind in _FORMS
    if not is_known or node.get("at_clause"):
        raise InvalidInput(
            f"The query cannot be answered: `tracks sql` does not take {kind or form} in a query. "
            "Write the SELECT with columns, operators, functions, joins and subqueries; "
            "(x).name is written x.name."
        )


def _check_function(node: Tree, function: str, exact_names: frozenset[str]) -> None:
    if node.get("schema") or node.get("catalog") or function in exact_names:
        raise refused_function(f"{function} of a schema or in quotes")
    is_sign = not any(letter.isalnum() or letter == "_" for letter in function)
    if not is_sign and function.lower() not in FUNCTIONS | _OF_THE_PARSER:
        raise refused_function(function)


def _attribute(names: list[str]) -> Iterator[str]:
    if len(names) > 2:
        raise InvalidInput(
            f"The query cannot be answered: write {'.'.join(names)} as table.column."
        )
    if len(names) == 2:
        yield names[1].lower()


def _check_type(node: Tree) -> None:
    name = str(node.get("type_name") or "")
    if node.get("schema") or name.lower() not in TYPES:
        raise InvalidInput(
            f"The query cannot be answered: `tracks sql` casts to no {name or 'such type'}; the types "
            f"that it casts to are {', '.join(sorted(TYPES))}."
        )


def _unreadable(statements: Any, exact_names: frozenset[str]) -> Iterator[str]:
    """Yield the relations that a query reads and may not.

    A name that `with` gives counts only where Postgres sees it too: within its query, in the parts
    after its own, and in its own where it is recursive.
    """
    left: list[tuple[Any, frozenset[str]]] = [(statements, _READABLE)]
    while left:
        node, seen = left.pop()
        if isinstance(node, list):
            left += [(item, seen) for item in node]
        if not isinstance(node, dict):
            continue
        for made in (node.get("cte_map") or {}).get("map") or ():
            name = str(made["key"])
            if name != name.lower():
                yield f"{name} (write the name in lower case)"
            query = made["value"]["query_node"]
            is_recursive = query.get("type") == "RECURSIVE_CTE_NODE"
            left.append((made["value"], seen | {name} if is_recursive else seen))
            seen |= {name}
        if "table_name" in node:
            name = str(node["table_name"])
            is_plain = not node.get("schema_name") and not node.get("catalog_name")
            if name and not (is_plain and name.lower() in seen and name not in exact_names):
                yield ".".join(
                    str(each)
                    for each in (node.get("catalog_name"), node.get("schema_name"), name)
                    if each
                )
        left += [(value, seen) for key, value in node.items() if key != "cte_map"]


def every_node(tree: Any) -> Iterator[Tree]:
    """Yield every object of a tree of JSON, however deep."""
    left = [tree]
    while left:
        node = left.pop()
        if isinstance(node, dict):
            yield node
        children = node.values() if isinstance(node, dict) else node
        left += [child for child in children if isinstance(child, dict | list)]


# --- the text -------------------------------------------------------------------------------------
#
# It is reduced to what DuckDB's and Postgres' lexers cut into the same words: what one reads as a
# comment or as the inside of a string the other might execute. So comments are removed here, and a form
# that only one of the two knows is refused: `E'…'`, `U&"…"`, `$$…$$`, backticks, comments in comments,
# other white space than ASCII's.

_PARTS = re.compile(
    r"""
    (?P<string>'(?:[^'\0]|'')*')
    | (?P<name>"(?:[^"\0]|"")+")
    | (?P<comment>--[^\r\n]*|/\*(?:(?!/\*|\*/).)*\*/)
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*|[0-9][A-Za-z0-9_.]*)
    | (?P<space>[ \t\r\n]+)
    | (?P<sign>[-,.;:()\[\]{}+*/%<>=!~|&^#?@])
    """,
    re.VERBOSE | re.DOTALL,
)


def comparable_text(query: str) -> tuple[str, frozenset[str]]:
    """Return `query` without comments, and the names in it that hold an upper-case letter in quotes.

    Postgres distinguishes those from the same name in lower case, DuckDB does not. Raises
    InvalidInput, with the place, for what the two might read differently.
    """
    kept: list[str] = []
    exact_names: set[str] = set()
    at, before = 0, ""
    while at < len(query):
        part = _PARTS.match(query, at)
        is_quoted = part is not None and part.lastgroup in ("string", "name")
        if part is None or (is_quoted and before in ("word", "string", "name", "&")):
            raise InvalidInput(_unclear(query, at))
        if (is_name := part.lastgroup == "name") and part.group() != part.group().lower():
            exact_names.add(part.group()[1:-1].replace('""', '"'))
        kept.append(" " if part.lastgroup == "comment" else part.group())
        before = (
            "name" if is_name else part.group() if part.group() == "&" else part.lastgroup or ""
        )
        at = part.end()
    try:
        return "".join(kept).encode().decode(), frozenset(exact_names)
    except UnicodeEncodeError as error:
        raise InvalidInput(_unclear(query, error.start)) from error


def _unclear(query: str, at: int) -> str:
    found = ascii(query[max(at - 10, 0) : at + 10])
    return (
        f"The query cannot be read: character {at + 1}, in {found}, may mean different things to the "
        "databases it may run on. Write strings as '…' (a quote in one as '') after a space, names "
        'as they are or "…", and neither $, `, a backslash, nor a comment within a comment.'
    )


# --- the query, as DuckDB's parser reads it; nothing is executed ----------------------------------


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
        tree = json.loads(text)  # noqa: TID251 - DuckDB's own, as deep as the query
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
    """Return DuckDB's message, without the kind of error and the picture below it."""
    line = str(error).strip().splitlines()[0]
    return line.partition("Error: ")[2].rstrip("!.") or line


def _words(node: dict[str, Any]) -> Iterator[str]:
    for value in node.values():
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            yield from (item for item in value if isinstance(item, str))


def _reads_unnamed(nodes: list[dict[str, Any]]) -> bool:
    """Whether a column may be read that the query does not name."""
    if any(node.get("error") or _NAMELESS & {*map(str, node.values())} for node in nodes):
        return True
    tables = [node for node in nodes if node.get("type") == "BASE_TABLE"]
    if any(table.get("column_name_alias") for table in tables):
        return True  # from notes as n(a, b, c): renamed by position
    rows = {str(table.get(key)).lower() for table in tables for key in ("alias", "table_name")}
    names = [node["column_names"] for node in nodes if "column_names" in node]
    return any(len(path) == 1 and path[0].lower() in rows for path in names)  # a row as a value
