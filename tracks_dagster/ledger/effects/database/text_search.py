"""Full-text search over `texts`: FTS5 on SQLite, a GIN index on Postgres, the same answers.

Both index the words that `ledger.searching` made of the text and split nothing themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.engine import Connection, Dialect

from tracks_dagster.ledger.effects.database.tables import texts

# Words hold no ASCII but letters, digits and the space between two of them, and the tokenizer "ascii"
# takes everything that is not ASCII as part of a word: so it splits at those spaces alone. The index
# names rows by their rowid, which nothing but VACUUM may change; `tracks reindex` mends that.
SEARCH_INDEX = {
    "sqlite": (
        "create virtual table texts_words using fts5("
        "words, content='texts', content_rowid='rowid', tokenize='ascii')",
        "create trigger texts_inserted after insert on texts begin "
        "insert into texts_words (rowid, words) values (new.rowid, new.words); end",
        "create trigger texts_deleted after delete on texts begin "
        "insert into texts_words (texts_words, rowid, words) "
        "values ('delete', old.rowid, old.words); end",
        "create trigger texts_updated after update on texts when old.words <> new.words begin "
        "insert into texts_words (texts_words, rowid, words) "
        "values ('delete', old.rowid, old.words); "
        "insert into texts_words (rowid, words) values (new.rowid, new.words); end",
    ),
    "postgresql": ("create index ix_texts_words on texts using gin (string_to_array(words, ' '))",),
}

_FTS5 = "texts.rowid in (select rowid from texts_words where texts_words match :phrases)"


def make_search_index(connection: Connection) -> None:
    """Make the index of each database's own kind, which SQLAlchemy has no word for."""
    for statement in SEARCH_INDEX[connection.dialect.name]:
        connection.exec_driver_sql(statement)


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
