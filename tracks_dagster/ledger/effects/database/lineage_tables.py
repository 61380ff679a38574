"""The tables that lineage is read from: edges that no other table has, and what is in quarantine."""

from __future__ import annotations

from sqlalchemy import BigInteger, Index, Table, Text

from tracks_dagster.ledger.effects.database.column_types import UtcTime
from tracks_dagster.ledger.effects.database.columns import key, may, metadata, must

attempt_nodes = Table(
    "attempt_nodes",
    metadata,
    key("run_id", Text),
    key("attempt_id", BigInteger),
    key("node", Text),
    must("placed_at", UtcTime),
    Index("ix_attempt_nodes_node", "node", "run_id", "attempt_id"),
)

attempt_resumes = Table(
    "attempt_resumes",
    metadata,
    key("run_id", Text),
    key("attempt_id", BigInteger),
    key("known_as", Text),  # asked: what it was opened with; restored: what it really took
    must("source_run_id", Text),
    must("source_attempt_id", BigInteger),
    must("source_step", BigInteger),
    must("source_manifest_sha256", Text),
    must("since_at", UtcTime),
    may("until_at", UtcTime),  # what was asked holds until it is known what was restored
    # "Who resumed from a checkpoint of this attempt?"
    Index(
        "ix_attempt_resumes_source", "source_run_id", "source_attempt_id", "source_step", "run_id"
    ),
)

source_quarantines = Table(  # those of snapshots stand in `snapshots`
    "source_quarantines",
    metadata,
    key("seq", BigInteger),
    must("source", Text),  # checkpoint:SHA256, attempt:RUN/aNN, node:NAME or code:COMMIT
    must("called", Text),
    must("decided_by", Text),
    must("why", Text),
    must("quarantined_at", UtcTime),
    may("released_at", UtcTime),
    may("released_by", Text),
    may("released_why", Text),
)
