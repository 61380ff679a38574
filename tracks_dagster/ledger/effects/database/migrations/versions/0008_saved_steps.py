"""When a checkpoint was withdrawn: the newest attempt's steps that none holds are lost; what an attempt
was for, and of which code, beside the attempt."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tracks_dagster.ledger.effects.database.views import drop_views, make_views

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    drop_views(op.get_bind())
    op.add_column("checkpoints", sa.Column("withdrawn_us", sa.BigInteger()))
    op.add_column("training_attempts", sa.Column("intent", sa.Text()))
    op.add_column("training_attempts", sa.Column("git_commit", sa.Text()))
    make_views(op.get_bind())
    op.execute("delete from track_cursors")  # the next scan fills the columns
