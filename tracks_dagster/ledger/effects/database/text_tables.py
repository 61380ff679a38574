"""The table of everything that was said in words, on any track; `text_search` asks it.

Its indexes are of a kind that each database has its own of, so `text_search` makes them.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Table, Text

from tracks_dagster.ledger.effects.database.column_types import UtcTime
from tracks_dagster.ledger.effects.database.columns import key, may, metadata, must

texts = Table(
    "texts",
    metadata,
    key("track", Text),
    key("seq", BigInteger),
    must("kind", Text),  # of the record
    may("run_id", Text),  # null where it concerns no run
    may("attempt_id", BigInteger),
    must("author", Text),  # a person, a sensor or a rule; empty where the record names none
    must("text", Text),
    must("words", Text),  # of the text, as they are searched: lower case, a space between
    must("said_at", UtcTime),
)
