"""The ledger's tables, from the facts: what their columns are, and which indexes serve which question.

Every column is a function of records: no surrogate ids, no ingest times. People query these names, so
a column keeps its meaning. Columns that end in `_json` hold JSON as text, `_at` a time in UTC, `_s` or
`_seconds` a duration, `_bytes` a size. `schema` makes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Double, Index, MetaData, Table, Text, text
from sqlalchemy.types import TypeEngine

from tracks_dagster.ledger.effects.database.column_types import UtcTime
from tracks_dagster.ledger.facts.fact import Fact, Type
from tracks_dagster.ledger.facts.tables import FACTS

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
}  # `texts` is searched by an index that each database has its own of


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
