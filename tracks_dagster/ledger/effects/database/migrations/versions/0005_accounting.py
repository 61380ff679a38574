"""How the seconds of attempts were spent, and the views that account for them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("checkpoints", sa.Column("committed_us", sa.BigInteger()))
    for name in ("spent_steps_s", "spent_data_s", "spent_saving_s", "spent_eval_s"):
        op.add_column("checkpoints", sa.Column(name, sa.Double()))
    op.add_column("evals", sa.Column("ended_us", sa.BigInteger()))
    op.add_column("evals", sa.Column("lag_s", sa.Double()))
    _create_run_facts()
    _create_attempt_facts()
    _create_attempt_readings()
    # The views were made here first; the newest migration that changes one makes them all.
    op.execute("delete from track_cursors")  # the next scan fills the new tables and columns


def _create_run_facts() -> None:
    op.create_table(
        "run_facts",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("model_family", sa.Text(), nullable=False),
        sa.Column("team", sa.Text(), nullable=False),
        sa.Column("declared_us", sa.BigInteger(), nullable=False),
        sa.Column("finished_us", sa.BigInteger()),
        sa.Column("told_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("run_id"),
    )


def _create_attempt_facts() -> None:
    op.create_table(
        "attempt_facts",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("attempt_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("opened_us", sa.BigInteger(), nullable=False),
        sa.Column("placed_us", sa.BigInteger()),
        sa.Column("restored_us", sa.BigInteger()),
        sa.Column("asked_step", sa.BigInteger(), nullable=False),
        sa.Column("asked_attempt_id", sa.BigInteger()),
        sa.Column("asked_steps_s", sa.Double()),
        sa.Column("restored_step", sa.BigInteger()),
        sa.Column("restored_attempt_id", sa.BigInteger()),
        sa.Column("restored_steps_s", sa.Double()),
        sa.Column("queue_to_us", sa.BigInteger()),
        sa.Column("startup_to_us", sa.BigInteger()),
        sa.Column("restore_to_us", sa.BigInteger()),
        sa.Column("steps_to_us", sa.BigInteger()),
        sa.Column("held_to_us", sa.BigInteger()),
        sa.Column("closed_us", sa.BigInteger()),
        sa.Column("reason", sa.Text()),
        sa.Column("reason_family", sa.Text()),
        sa.Column("fingerprint", sa.Text()),
        sa.Column("last_step", sa.BigInteger()),
        sa.Column("spent_steps_s", sa.Double()),
        sa.Column("spent_data_s", sa.Double()),
        sa.Column("spent_saving_s", sa.Double()),
        sa.Column("spent_eval_s", sa.Double()),
        sa.Column("devices", sa.BigInteger(), nullable=False),
        sa.Column("device_class", sa.Text(), nullable=False),
        sa.Column("accelerator", sa.Text(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("debit_reason", sa.Text()),
        sa.Column("debit_amount", sa.Double()),
        sa.Column("cycled_node_count", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "attempt_id"),
    )


def _create_attempt_readings() -> None:
    op.create_table(
        "attempt_readings",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("attempt_id", sa.BigInteger(), nullable=False),
        sa.Column("told_us", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("reason_family", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "seq"),
    )
