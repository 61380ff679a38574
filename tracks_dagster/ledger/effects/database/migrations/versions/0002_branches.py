"""Which checkpoint of another run a run branched from, and of which run an attempt's resume is."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("training_runs", sa.Column("branched_from_run_id", sa.Text()))
    op.add_column("training_runs", sa.Column("branched_from_step", sa.BigInteger()))
    op.add_column("training_runs", sa.Column("branched_from_manifest_sha256", sa.Text()))
    op.add_column("training_attempts", sa.Column("resumed_from_run_id", sa.Text()))
    op.execute("delete from track_cursors")  # the next scan fills the new columns
