"""Which compute pool an attempt ran in, and what ended there of late."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("training_attempts", sa.Column("pool", sa.Text()))
    op.create_index("ix_training_attempts_pool_ends", "training_attempts", ["pool", "ended_at"])
    op.execute("delete from track_cursors")  # the next scan fills the new column
