"""Which nodes attempts ran on, what they resumed from, and what is in quarantine as a source."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tracks_dagster.ledger.effects.database.column_types import UtcTime

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

INDEXES = (  # name, table, columns
    ("ix_attempt_nodes_node", "attempt_nodes", ("node", "run_id", "attempt_id")),
    (
        "ix_attempt_resumes_source",
        "attempt_resumes",
        ("source_run_id", "source_attempt_id", "source_step", "run_id"),
    ),
    ("ix_training_attempts_closed", "training_attempts", ("closed_at",)),
    ("ix_training_runs_code", "training_runs", ("git_commit", "package_version", "run_id")),
    ("ix_training_runs_declared", "training_runs", ("declared_at",)),
    (
        "ix_training_attempts_snapshot",
        "training_attempts",
        ("dataset", "snapshot_id", "run_id", "attempt_id"),
    ),
    (
        "ix_training_attempts_environment",
        "training_attempts",
        ("environment_sha256", "run_id", "attempt_id"),
    ),
    ("ix_checkpoints_attempt", "checkpoints", ("run_id", "attempt_id", "step", "committed_at")),
    ("ix_checkpoints_manifest", "checkpoints", ("manifest_sha256",)),
    ("ix_evals_checkpoint", "evals", ("run_id", "manifest_sha256")),
    ("ix_evals_snapshot", "evals", ("dataset", "snapshot_id")),
    ("ix_promotions_checkpoint", "promotions", ("run_id", "manifest_sha256")),
    ("ix_promotions_alias", "promotions", ("alias", "decided_at")),
)


def upgrade() -> None:
    op.add_column("training_attempts", sa.Column("closed_at", UtcTime()))
    for column in ("superseded_at", "quarantined_at", "deleted_at"):
        op.add_column("checkpoints", sa.Column(column, UtcTime()))
    op.add_column("promotions", sa.Column("is_withheld", sa.Boolean()))
    op.add_column("snapshots", sa.Column("quarantined_at", UtcTime()))
    op.create_table(
        "attempt_nodes",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("attempt_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("placed_at", UtcTime(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "attempt_id", "node"),
    )
    op.create_table(
        "attempt_resumes",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("attempt_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("known_as", sa.Text(), nullable=False),
        sa.Column("source_run_id", sa.Text(), nullable=False),
        sa.Column("source_attempt_id", sa.BigInteger(), nullable=False),
        sa.Column("source_step", sa.BigInteger(), nullable=False),
        sa.Column("source_manifest_sha256", sa.Text(), nullable=False),
        sa.Column("since_at", UtcTime(), nullable=False),
        sa.Column("until_at", UtcTime()),
        sa.PrimaryKeyConstraint("run_id", "attempt_id", "known_as"),
    )
    op.create_table(
        "source_quarantines",
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("called", sa.Text(), nullable=False),
        sa.Column("decided_by", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("quarantined_at", UtcTime(), nullable=False),
        sa.Column("released_at", UtcTime()),
        sa.Column("released_by", sa.Text()),
        sa.Column("released_why", sa.Text()),
        sa.PrimaryKeyConstraint("seq"),
    )
    for name, table, columns in INDEXES:
        op.create_index(name, table, list(columns))
    withheld = sa.text("is_withheld")
    op.create_index(
        "ix_promotions_withheld",
        "promotions",
        ["decided_at", "run_id"],
        sqlite_where=withheld,
        postgresql_where=withheld,
    )
    op.execute("delete from track_cursors")  # the next scan fills the new columns and tables
