"""Which nodes of a compute pool were struck and quarantined."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tracks_dagster.ledger.effects.database.column_types import UtcTime

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_training_runs_state", "training_runs", ["state"])
    op.create_table(
        "node_strikes",
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("attempt_id", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("decided_by", sa.Text(), nullable=False),
        sa.Column("exposure_s", sa.Double(), nullable=False),
        sa.Column("pool_exposure_s", sa.Double(), nullable=False),
        sa.Column("pool_node_count", sa.BigInteger(), nullable=False),
        sa.Column("struck_at", UtcTime(), nullable=False),
        sa.PrimaryKeyConstraint("pool", "seq"),
    )
    op.create_table(
        "node_quarantines",
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("decided_by", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("strike_count", sa.BigInteger(), nullable=False),
        sa.Column("quarantined_at", UtcTime(), nullable=False),
        sa.Column("until_at", UtcTime(), nullable=False),
        sa.Column("released_at", UtcTime()),
        sa.Column("released_by", sa.Text()),
        sa.Column("released_why", sa.Text()),
        sa.PrimaryKeyConstraint("pool", "seq"),
    )
    op.execute("delete from track_cursors")  # the next scan takes in every track, pools' as well
