"""The ledger's tables, from the facts, with their indexes, its views and its full-text search.

Every column is a function of records: no surrogate ids, no ingest times. People query these names, so
a column keeps its meaning. Columns that end in `_json` hold JSON as text, `_at` a time in UTC, `_s` or
`_seconds` a duration, `_bytes` a size. Views are known here by name and column, so that `tracks sql`
can read them as it reads tables. `schema` makes them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import BigInteger, Boolean, Column, Double, Index, MetaData, Table, Text, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.engine import Connection, Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine

from tracks_dagster.ledger.facts.fact import Fact, Type
from tracks_dagster.ledger.facts.tables import FACTS
from tracks_dagster.ledger.ledger_views import VIEWS, select_of
from tracks_dagster.track.records import format_time, parse_time


class UtcTime(TypeDecorator[datetime]):
    """An aware datetime in UTC: timestamptz on Postgres; on SQLite text, which sorts by time."""

    impl = sa.String
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Choose what the database stores."""
        if dialect.name == "postgresql":
            return dialect.type_descriptor(postgresql.TIMESTAMP(timezone=True))
        return dialect.type_descriptor(sa.String())

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        """Turn a datetime into what the database stores."""
        if value is None or dialect.name == "postgresql":
            return value
        return format_time(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        """Turn what the database stores into a datetime."""
        return None if value is None else as_utc(value)


def as_utc(value: datetime | str) -> datetime:
    """Return the aware UTC datetime of a column of `UtcTime`, in whichever form it was read."""
    return parse_time(value) if isinstance(value, str) else value.astimezone(UTC)


ColumnType = type[TypeEngine[Any]]

_TYPES: Mapping[Type, ColumnType] = {
    Type.INTEGER: BigInteger,
    Type.REAL: Double,
    Type.TRUTH: Boolean,
    Type.TIME: UtcTime,
}
_INDEXES: Mapping[str, Sequence[Index]] = {
    "training_runs": (
        # "Which runs are not over?" at every tick, beside however many that are.
        Index("ix_training_runs_state", "state"),
        # "Which runs were declared at this commit, or this version?"
        Index("ix_training_runs_code", "git_commit", "package_version", "run_id"),
        # "Which runs are the newest?"
        Index("ix_training_runs_declared", "declared_at"),
        # "Which runs wait for a verdict?" at every tick; "what was shown for this stage?"
        Index("ix_training_runs_stage", "stage", "state"),
    ),
    "training_attempts": (
        # "What did the last week's failures cost, by reason?" reads this index alone.
        Index(
            "ix_training_attempts_cost_by_reason",
            *("model_family", "started_at", "termination_reason", "gpu_seconds"),
        ),
        # "What ended in this pool in the last minutes?"
        Index("ix_training_attempts_pool_ends", "pool", "ended_at"),
        # "What ended on that day?"
        Index("ix_training_attempts_closed", "closed_at"),
        # "Which attempts were opened on this snapshot?" and "in this environment?"
        Index("ix_training_attempts_snapshot", "dataset", "snapshot_id", "run_id", "attempt_id"),
        Index("ix_training_attempts_environment", "environment_sha256", "run_id", "attempt_id"),
        # "Which attempts ran the code of this commit, these stored bytes, this version?"
        Index("ix_training_attempts_commit", "git_commit", "run_id", "attempt_id"),
        Index("ix_training_attempts_code", "code_sha256", "run_id", "attempt_id"),
        Index("ix_training_attempts_version", "package_version", "run_id", "attempt_id"),
    ),
    "checkpoints": (
        Index("ix_checkpoints_attempt", "run_id", "attempt_id", "step", "committed_at"),
        Index("ix_checkpoints_manifest", "manifest_sha256"),
    ),
    "evals": (
        Index("ix_evals_checkpoint", "run_id", "manifest_sha256"),
        Index("ix_evals_snapshot", "dataset", "snapshot_id"),
    ),
    "promotions": (
        Index("ix_promotions_checkpoint", "run_id", "manifest_sha256"),
        # "Who holds this alias?"
        Index("ix_promotions_alias", "alias", "decided_at"),
        # "Which may be decided again?" at every tick.
        Index(
            "ix_promotions_withheld",
            *("decided_at", "run_id"),
            sqlite_where=text("is_withheld"),
            postgresql_where=text("is_withheld"),
        ),
    ),
    "attempt_nodes": (Index("ix_attempt_nodes_node", "node", "run_id", "attempt_id"),),
    "attempt_resumes": (
        # "Who resumed from a checkpoint of this attempt?"
        Index(
            "ix_attempt_resumes_source",
            *("source_run_id", "source_attempt_id", "source_step", "run_id"),
        ),
    ),
    # "Which tracks have had news since then?" at every tick of who sends messages. What is searched for
    # in the words has an index of each database's own kind.
    "texts": (Index("ix_texts_said", "said_at"),),
}


def _columns(facts: Sequence[Fact[Any]]) -> Iterator[Column[Any]]:
    for each in facts:
        if each.has_column:
            yield Column(
                each.column,
                _TYPES.get(each.type, Text),
                primary_key=each.is_key,
                autoincrement=False,
                nullable=each.is_nullable,
            )


metadata = MetaData()
for _name, _facts in FACTS.items():
    Table(_name, metadata, *_columns(_facts), *_INDEXES.get(_name, ()))
texts = metadata.tables["texts"]
track_cursors = Table(
    "track_cursors",
    metadata,
    Column("track", Text, primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("sha256", Text, nullable=False),
)


views = MetaData()  # what `ledger.ledger_views` computes, as of now

_NOW_US = {
    "sqlite": "cast((julianday('now') - 2440587.5) * 86400000000.0 as integer)",
    "postgresql": "cast(extract(epoch from now()) * 1000000 as bigint)",
}
_TEXTS = {
    *("run_id", "eval_id", "suite", "model_family", "team", "cause", "debit_reason"),
    *("reason", "reason_family", "fingerprint", "device_class", "pool", "accelerator"),
}
_NUMBERS = {"ettr_wall", "ettr", "gpu_goodput", "amount", "debit_amount"}


def make_views(connection: Connection) -> None:
    """Create every view, as of the moment at which it is read."""
    now_us = _NOW_US[connection.dialect.name]
    for view in VIEWS:
        text = select_of(view).replace(":as_of_us", now_us).replace(":since_us", "0")
        connection.exec_driver_sql(f"create view {view} as {text}")


def _add_view(name: str, columns: str) -> None:
    """Add a view of these columns, the first of them its key; their names tell their types."""
    first, *others = columns.split()
    key: Column[Any] = Column(first, _type(first), primary_key=True)
    Table(name, views, key, *(Column(each, _type(each)) for each in others))


def _type(name: str) -> type[Text] | type[Double[Any]] | type[BigInteger]:
    if name in _TEXTS:
        return Text
    return Double if name in _NUMBERS or name.endswith(("_s", "_hours")) else BigInteger


_add_view(
    "attempt_time",
    "run_id attempt_id model_family team cause reason reason_family fingerprint devices device_class "
    "pool accelerator cycled_node_count opened_us closed_us kept_steps lost_steps is_interruption "
    "is_planned is_dead_retry is_same_failure repair_s idle_s queue_s startup_s restore_s "
    "step_kept_s step_lost_s checkpoint_blocking_s data_wait_s inline_eval_s detection_s unknown_s "
    "held_s startup_device_s restore_device_s step_kept_device_s step_lost_device_s "
    "checkpoint_blocking_device_s data_wait_device_s inline_eval_device_s detection_device_s "
    "unknown_device_s device_s",
)
_add_view(
    "run_time",
    "run_id model_family team attempts kept_steps lost_steps wall_s queue_s startup_s restore_s "
    "step_kept_s step_lost_s checkpoint_blocking_s data_wait_s inline_eval_s detection_s idle_s "
    "unknown_s held_s step_kept_device_s step_lost_device_s device_s ettr_wall ettr gpu_goodput",
)
_add_view(
    "waste_by_reason",
    "reason reason_family attempts device_hours wasted_device_hours lost_device_hours lost_steps",
)
_add_view(
    "dead_retries",
    "run_id attempt_id cause reason reason_family fingerprint closed_us device_hours "
    "is_same_failure",
)
_add_view("budget_burn", "reason debits amount")
_add_view(
    "interruptions",
    "run_id attempt_id reason reason_family closed_us is_planned detect_s repair_s",
)
_add_view("eval_lag", "run_id eval_id number suite ended_us lag_s")


# Full-text search over `texts`: FTS5 on SQLite, a GIN index on Postgres, the same answers. Both index
# the words that `ledger.texts` made of the text and split nothing themselves.
#
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
    # Databases order text by collations of their own; Postgres is made to do it by bytes.
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
