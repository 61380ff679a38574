"""The text of a query, reduced to what DuckDB's and Postgres' lexers cut into the same words.

What one reads as a comment or as the inside of a string the other might execute. So comments are
removed here, and a form that only one of the two knows is refused: `E'…'`, `U&"…"`, `$$…$$`, backticks,
comments in comments, other white space than ASCII's.
"""

from __future__ import annotations

import re

from tracks_dagster.track.errors import InvalidInput

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

    Postgres tells those from the same name in lower case, DuckDB does not. Raises InvalidInput, with
    the place, for what the two might read differently.
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
