"""The ledger's tables. Every column is a function of records: no surrogate ids, no ingest times.

People query these names, so a column keeps its meaning. Columns that end in `_json` hold JSON as
text, `_at` a time in UTC, `_s` or `_seconds` a duration, `_bytes` a size. The migrations create the
tables; a test compares the two.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    MetaData,
    Table,
    Text,
)
from sqlalchemy.types import TypeEngine

from tracks_dagster.adapters.ledger.column_types import UtcTime

metadata = MetaData()

ColumnType = type[TypeEngine[Any]]


def _key(name: str, kind: ColumnType) -> Column[Any]:
    return Column(name, kind, primary_key=True, autoincrement=False)


def _must(name: str, kind: ColumnType) -> Column[Any]:
    return Column(name, kind, nullable=False)


def _may(name: str, kind: ColumnType) -> Column[Any]:
    return Column(name, kind, nullable=True)


track_cursors = Table(
    "track_cursors",
    metadata,
    _key("track", Text),
    _must("seq", BigInteger),
    _must("sha256", Text),
)

training_runs = Table(
    "training_runs",
    metadata,
    _key("run_id", Text),
    _must("model_family", Text),
    _must("stage", Text),
    _must("owner", Text),
    _must("team", Text),
    _must("intent", Text),
    _must("dataset", Text),
    _must("snapshot_id", Text),
    _may("git_commit", Text),
    _may("git_branch", Text),
    _may("git_dirty", Boolean),
    _must("package_version", Text),
    _must("trainer", Text),
    _must("launcher", Text),
    _must("ranks", BigInteger),
    _must("device_class", Text),
    _may("max_steps", BigInteger),
    _must("config_json", Text),
    _must("estimated_device_s", Double),
    _must("state", Text),  # running, waiting, succeeded, refused or cancelled
    _must("state_why", Text),
    _must("declared_at", UtcTime),
    _may("finished_at", UtcTime),
    _may("stop_cause", Text),
    _must("attempt_count", BigInteger),
    _must("device_seconds", Double),  # of the attempts that have ended
    _may("final_step", BigInteger),
    _may("final_manifest_sha256", Text),
    # added later, so last, as on a ledger that was migrated
    _may("branched_from_run_id", Text),  # null where the run began afresh
    _may("branched_from_step", BigInteger),
    _may("branched_from_manifest_sha256", Text),
    # "Which runs are not over?" at every tick, beside however many that are.
    Index("ix_training_runs_state", "state"),
)

training_attempts = Table(
    "training_attempts",
    metadata,
    _key("run_id", Text),
    _key("attempt_id", BigInteger),
    _must("partition_key", Text),
    _must("model_family", Text),
    _must("stage", Text),
    _must("owner", Text),
    # why it was opened
    _must("cause", Text),
    _must("decision", Text),
    _must("decided_by", Text),
    _must("policy_version", Text),
    _may("debit_reason", Text),
    _may("debit_amount", Double),
    _may("debit_why", Text),
    _must("remediation_json", Text),
    _must("config_json", Text),
    _must("config_sha256", Text),
    _must("dataset", Text),
    _must("snapshot_id", Text),
    # where it ran
    _may("dagster_run_id", Text),  # of the newest claim
    _may("launch_id", Text),
    _must("ranks", BigInteger),
    _must("nodes_json", Text),
    _must("devices_json", Text),
    _must("accelerator", Text),
    _may("image", Text),
    _may("environment_sha256", Text),
    # when: its own start and end, where they were seen, else what the records say
    _must("opened_at", UtcTime),
    _may("placed_at", UtcTime),
    _may("restored_at", UtcTime),
    _must("started_at", UtcTime),
    _may("ended_at", UtcTime),
    # why it ended
    _may("termination_reason", Text),
    _may("reason_family", Text),
    _may("confidence", Double),
    _may("rule", Text),
    _may("classifier_version", Text),
    _may("root_message", Text),
    _may("fingerprint", Text),
    _may("evidence_key", Text),
    _may("evidence_sha256", Text),
    _may("closed_by", Text),
    _may("first_line_ran", Boolean),
    # what it did
    _may("gpu_seconds", Double),  # device seconds, whatever the accelerator
    _may("resumed_from_step", BigInteger),  # null when it began afresh
    _may("resumed_from_manifest_sha256", Text),
    _may("last_step", BigInteger),
    _must("kept_steps", BigInteger),
    _must("lost_steps", BigInteger),
    _must("checkpoint_count", BigInteger),
    _may("cursor_from", BigInteger),
    _may("cursor_to", BigInteger),
    # "What did the last week's failures cost, by reason?" reads this index alone.
    Index(
        "ix_training_attempts_cost_by_reason",
        "model_family",
        "started_at",
        "termination_reason",
        "gpu_seconds",
    ),
    # added later
    _may("resumed_from_run_id", Text),  # its own run, or the one that it branched from
    _may("pool", Text),  # the compute pool that it was asked for
    # "What ended in this pool in the last minutes?"
    Index("ix_training_attempts_pool_ends", "pool", "ended_at"),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    _key("run_id", Text),
    _key("manifest_sha256", Text),
    _must("attempt_id", BigInteger),
    _must("step", BigInteger),
    _must("status", Text),  # committed, superseded, quarantined or deleted
    _must("pins_json", Text),
    _must("object_prefix", Text),
    _must("launch_id", Text),
    _must("cursor", BigInteger),
    _must("epoch", BigInteger),
    _must("trigger", Text),
    _must("total_bytes", BigInteger),
    _must("written_bytes", BigInteger),
    _must("blocking_s", Double),
    _must("metrics_json", Text),
    _must("committed_at", UtcTime),
)

evals = Table(
    "evals",
    metadata,
    _key("run_id", Text),
    _key("eval_id", Text),
    _key("number", BigInteger),
    _must("attempt_id", BigInteger),  # of the checkpoint
    _must("step", BigInteger),
    _must("manifest_sha256", Text),
    _must("suite", Text),
    _must("suite_version", Text),
    _must("dataset", Text),
    _must("snapshot_id", Text),
    _must("seed", BigInteger),
    _must("decision", Text),
    _must("decided_by", Text),
    _may("dagster_run_id", Text),
    _must("opened_at", UtcTime),
    _may("started_at", UtcTime),
    _may("ended_at", UtcTime),
    _may("reason", Text),  # completed, or why it failed
    _may("message", Text),
    _may("metrics_json", Text),
    _may("sample_count", BigInteger),
    _may("device_seconds", Double),
    _may("environment_sha256", Text),
)

promotions = Table(
    "promotions",
    metadata,
    _key("run_id", Text),
    _key("seq", BigInteger),
    _must("alias", Text),
    _must("promoted", Boolean),  # false is a refusal, recorded all the same
    _must("attempt_id", BigInteger),
    _must("step", BigInteger),
    _must("manifest_sha256", Text),
    _must("eval_id", Text),
    _must("eval_number", BigInteger),
    _must("suite", Text),
    _must("suite_version", Text),
    _must("dataset", Text),
    _must("snapshot_id", Text),
    _must("seed", BigInteger),
    _must("environment_sha256", Text),
    _must("metric", Text),
    _may("value", Double),
    _must("direction", Text),
    _must("threshold", Double),
    _must("metrics_json", Text),
    _must("decided_by", Text),
    _must("why", Text),
    _must("decided_at", UtcTime),
)

datasets = Table(
    "datasets",
    metadata,
    _key("dataset", Text),
    _must("kind", Text),
    _must("description", Text),
    _must("declared_at", UtcTime),
    _must("snapshot_count", BigInteger),
    _may("newest_usable_snapshot_id", Text),
)

snapshots = Table(
    "snapshots",
    metadata,
    _key("dataset", Text),
    _key("snapshot_id", Text),
    _must("status", Text),  # usable or quarantined
    _may("quarantined_why", Text),
    _must("manifest_key", Text),
    _must("logical_sha256", Text),
    _must("row_count", BigInteger),
    _must("shard_count", BigInteger),
    _must("total_bytes", BigInteger),
    _must("source", Text),
    _must("checks_json", Text),
    _may("dagster_run_id", Text),
    _must("committed_at", UtcTime),
)

node_strikes = Table(
    "node_strikes",
    metadata,
    _key("pool", Text),
    _key("seq", BigInteger),
    _must("node", Text),
    _must("run_id", Text),
    _must("attempt_id", BigInteger),
    _must("reason", Text),
    _must("why", Text),
    _must("decided_by", Text),
    _must("exposure_s", Double),  # of the node, inside the policy's window
    _must("pool_exposure_s", Double),
    _must("pool_node_count", BigInteger),
    _must("struck_at", UtcTime),  # when the attempt ended
)

node_quarantines = Table(  # of a node the newest row counts: it replaces one that holds
    "node_quarantines",
    metadata,
    _key("pool", Text),
    _key("seq", BigInteger),
    _must("node", Text),
    _must("decided_by", Text),
    _must("why", Text),
    _must("strike_count", BigInteger),  # that a rule counted; 0: a person decided
    _must("quarantined_at", UtcTime),
    _must("until_at", UtcTime),
    _may("released_at", UtcTime),
    _may("released_by", Text),
    _may("released_why", Text),
)

notes = Table(
    "notes",
    metadata,
    _key("run_id", Text),
    _key("seq", BigInteger),
    _must("kind", Text),  # note or alert
    _may("attempt_id", BigInteger),
    _must("author", Text),  # who wrote the note, or the rule that raised the alert
    _must("text", Text),
    _must("data_json", Text),
    _must("noted_at", UtcTime),
)
