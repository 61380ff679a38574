"""The ledger's views: what `ledger.ledger_views` tells, as of now.

They are known here by name and column, so that `tracks sql` can read them as it reads tables.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, Double, MetaData, Table, Text
from sqlalchemy.engine import Connection

from tracks_dagster.ledger.ledger_views import VIEWS, select_of

views = MetaData()

_NOW_US = {
    "sqlite": "cast((julianday('now') - 2440587.5) * 86400000000.0 as integer)",
    "postgresql": "cast(extract(epoch from now()) * 1000000 as bigint)",
}
_TEXTS = {
    *("run_id", "eval_id", "suite", "model_family", "team", "cause", "debit_reason"),
    *("reason", "reason_family", "fingerprint", "device_class", "accelerator"),
}
_NUMBERS = {"ettr_wall", "ettr", "gpu_goodput", "amount", "debit_amount"}


def make_views(connection: Connection) -> None:
    """Create every view, as of the moment at which it is read."""
    now_us = _NOW_US[connection.dialect.name]
    for view in VIEWS:
        text = select_of(view).replace(":as_of_us", now_us).replace(":since_us", "0")
        connection.exec_driver_sql(f"create view {view} as {text}")


def _view(name: str, columns: str) -> Table:
    """Return a view of these columns, the first of them its key; their names tell their types."""
    first, *others = columns.split()
    key: Column[Any] = Column(first, _type(first), primary_key=True)
    return Table(name, views, key, *(Column(each, _type(each)) for each in others))


def _type(name: str) -> type[Text] | type[Double[Any]] | type[BigInteger]:
    if name in _TEXTS:
        return Text
    return Double if name in _NUMBERS or name.endswith(("_s", "_hours")) else BigInteger


attempt_time = _view(
    "attempt_time",
    "run_id attempt_id model_family team cause reason reason_family fingerprint devices device_class "
    "accelerator cycled_node_count opened_us closed_us kept_steps lost_steps is_interruption "
    "is_planned is_dead_retry is_same_failure repair_s idle_s queue_s startup_s restore_s "
    "step_kept_s step_lost_s checkpoint_blocking_s data_wait_s inline_eval_s detection_s unknown_s "
    "held_s startup_device_s restore_device_s step_kept_device_s step_lost_device_s "
    "checkpoint_blocking_device_s data_wait_device_s inline_eval_device_s detection_device_s "
    "unknown_device_s device_s",
)
run_time = _view(
    "run_time",
    "run_id model_family team attempts kept_steps lost_steps wall_s queue_s startup_s restore_s "
    "step_kept_s step_lost_s checkpoint_blocking_s data_wait_s inline_eval_s detection_s idle_s "
    "unknown_s held_s step_kept_device_s step_lost_device_s device_s ettr_wall ettr gpu_goodput",
)
waste_by_reason = _view(
    "waste_by_reason",
    "reason reason_family attempts device_hours wasted_device_hours lost_device_hours lost_steps",
)
dead_retries = _view(
    "dead_retries",
    "run_id attempt_id cause reason reason_family fingerprint closed_us device_hours "
    "is_same_failure",
)
budget_burn = _view("budget_burn", "reason debits amount")
interruptions = _view(
    "interruptions",
    "run_id attempt_id reason reason_family closed_us is_planned detect_s repair_s",
)
eval_lag = _view("eval_lag", "run_id eval_id number suite ended_us lag_s")
