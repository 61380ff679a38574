"""What people and machines said, to be searched."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tracks_dagster.ledger.effects.database.column_types import UtcTime

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

# Words hold no ASCII but letters, digits and the space between two of them, and the tokenizer "ascii"
# takes everything that is not ASCII as part of a word: so it splits at those spaces alone. The index
# names rows by their rowid, which nothing but VACUUM may change; `tracks reindex` mends that.
FTS5 = (
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
)
GIN = "create index ix_texts_words on texts using gin (string_to_array(words, ' '))"


def upgrade() -> None:
    op.create_table(
        "texts",
        sa.Column("track", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text()),
        sa.Column("attempt_id", sa.BigInteger()),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("words", sa.Text(), nullable=False),
        sa.Column("said_at", UtcTime(), nullable=False),
        sa.PrimaryKeyConstraint("track", "seq"),
    )
    connection = op.get_bind()
    is_postgres = connection.dialect.name == "postgresql"
    for statement in (GIN,) if is_postgres else FTS5:
        connection.exec_driver_sql(statement)
    connection.execute(sa.text("delete from track_cursors"))  # the next scan takes in every text
