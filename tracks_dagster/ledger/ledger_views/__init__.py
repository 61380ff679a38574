"""The account of time as SQL over the ledger: one text for the views and for "as of" a time.

Each `.sql` file here is one SELECT, which may name the ones before it in VIEWS as if they were tables.
The database has a view of each, as of now; `select_as_of` puts them before a query instead, as of
any time. The same text runs on SQLite and on Postgres.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

VIEWS = (
    "attempt_time",
    "run_time",
    "waste_by_reason",
    "dead_retries",
    "budget_burn",
    "interruptions",
    "eval_lag",
)

_COMMENT = re.compile(r"--[^\n]*\n")


@cache
def select_of(view: str) -> str:
    """Return the SELECT of a view; it takes `:as_of_us` and `:since_us`, without comments.

    as_of_us: records that came later are as if they were not there, and time ends there; since_us:
    runs that were finished and silent by then may be left out. Microseconds since 1970.
    """
    text = files(__package__).joinpath(f"{view}.sql").read_text(encoding="utf-8")
    return without_comments(text)


def without_comments(sql: str) -> str:
    """Return a statement without its comments, which a driver might read for parameters."""
    return _COMMENT.sub("", sql).strip()


def select_as_of(query: str) -> str:
    """Return `query`, a SELECT without a `with` of its own, over the views as of `:as_of_us`."""
    needed: set[str] = set()
    for view in reversed(VIEWS):
        if any(_names(text, view) for text in (query, *map(select_of, needed))):
            needed.add(view)
    parts = [f"{view} as ({select_of(view)})" for view in VIEWS if view in needed]
    return f"with {', '.join(parts)} {query}" if parts else query


def _names(text: str, view: str) -> bool:
    return re.search(rf"\b(?:from|join) {view}\b", text) is not None
