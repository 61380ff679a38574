"""Full-text search over `texts`: FTS5 on SQLite, a GIN index on Postgres, the same answers.

Both index the words that `ledger.searching` made of the text and split nothing themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.engine import Dialect

from tracks_dagster.ledger.effects.database.text_tables import texts

_FTS5 = "texts.rowid in (select rowid from texts_words where texts_words match :phrases)"


def search_statement(
    dialect: Dialect,
    phrases: Sequence[str],
    *,
    since: datetime | None,
    run_id: str | None,
    attempt_id: int | None,
    limit: int,
) -> sa.Select[tuple[object, ...]]:
    """Return the SELECT of the texts in which all `phrases` occur, the newest first."""
    is_postgres = dialect.name == "postgresql"
    # Databases order text by collations of their own; Postgres is told to do it by bytes.
    track = texts.c.track.collate("C") if is_postgres else texts.c.track
    statement = (
        sa.select(*(column for column in texts.c if column.name != "words"))
        .where(*(_postgres(phrases) if is_postgres else _sqlite(phrases)))
        .order_by(texts.c.said_at.desc(), track, texts.c.seq.desc())
        .limit(limit)
    )
    if since is not None:
        statement = statement.where(texts.c.said_at >= since)
    if run_id is not None:
        statement = statement.where(texts.c.run_id == run_id)
    if attempt_id is not None:
        statement = statement.where(texts.c.attempt_id == attempt_id)
    return statement


def _sqlite(phrases: Sequence[str]) -> list[sa.ColumnElement[bool]]:
    """Ask FTS5: words hold no quote, so a phrase in quotes is only a phrase."""
    asked = " AND ".join(f'"{phrase}"' for phrase in phrases)
    return [sa.text(_FTS5).bindparams(phrases=asked)]  # type: ignore[list-item]


def _postgres(phrases: Sequence[str]) -> list[sa.ColumnElement[bool]]:
    """Ask the GIN index for texts with all words, then those for the phrases."""
    words = sa.func.string_to_array(texts.c.words, " ", type_=ARRAY(sa.Text))
    asked = sa.func.string_to_array(" ".join(phrases), " ", type_=ARRAY(sa.Text))
    padded = sa.literal(" ") + texts.c.words + " "
    side_by_side = [
        sa.func.strpos(padded, f" {phrase} ") > 0 for phrase in phrases if " " in phrase
    ]
    return [words.contains(asked), *side_by_side]
