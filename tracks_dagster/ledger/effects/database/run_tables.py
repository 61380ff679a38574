"""The tables that a training run's track is projected into; `tables` tells how columns are named."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Double, Index, Table, Text, text

from tracks_dagster.ledger.effects.database.column_types import UtcTime
from tracks_dagster.ledger.effects.database.columns import columns_of, key, may, metadata, must
from tracks_dagster.ledger.facts.attempt import ATTEMPT

training_runs = Table(
    "training_runs",
    metadata,
    key("run_id", Text),
    must("model_family", Text),
    must("stage", Text),
    must("owner", Text),
    must("team", Text),
    must("intent", Text),
    must("dataset", Text),
    must("snapshot_id", Text),
    may("git_commit", Text),
    may("git_branch", Text),
    may("git_dirty", Boolean),
    must("package_version", Text),
    must("trainer", Text),
    must("launcher", Text),
    must("ranks", BigInteger),
    must("device_class", Text),
    may("max_steps", BigInteger),
    must("config_json", Text),
    must("estimated_device_s", Double),
    must("state", Text),  # running, waiting, succeeded, refused or cancelled
    must("state_why", Text),
    must("declared_at", UtcTime),
    may("finished_at", UtcTime),
    may("stop_cause", Text),
    must("attempt_count", BigInteger),
    must("device_seconds", Double),  # of the attempts that have ended
    may("final_step", BigInteger),
    may("final_manifest_sha256", Text),
    # added later, so last, as on a ledger that was migrated
    may("branched_from_run_id", Text),  # null where the run began afresh
    may("branched_from_step", BigInteger),
    may("branched_from_manifest_sha256", Text),
    # "Which runs are not over?" at every tick, beside however many that are.
    Index("ix_training_runs_state", "state"),
    # "Which runs were declared at this commit, or this version?"
    Index("ix_training_runs_code", "git_commit", "package_version", "run_id"),
    # "Which runs are the newest?"
    Index("ix_training_runs_declared", "declared_at"),
)

training_attempts = Table(
    "training_attempts",
    metadata,
    *columns_of(ATTEMPT),
    # "What did the last week's failures cost, by reason?" reads this index alone.
    Index(
        "ix_training_attempts_cost_by_reason",
        "model_family",
        "started_at",
        "termination_reason",
        "gpu_seconds",
    ),
    # "What ended in this pool in the last minutes?"
    Index("ix_training_attempts_pool_ends", "pool", "ended_at"),
    # "What ended on that day?"
    Index("ix_training_attempts_closed", "closed_at"),
    # "Which attempts were opened on this snapshot?" and "in this environment?"
    Index("ix_training_attempts_snapshot", "dataset", "snapshot_id", "run_id", "attempt_id"),
    Index("ix_training_attempts_environment", "environment_sha256", "run_id", "attempt_id"),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    key("run_id", Text),
    key("manifest_sha256", Text),
    must("attempt_id", BigInteger),
    must("step", BigInteger),
    must("status", Text),  # committed, superseded, quarantined or deleted
    must("pins_json", Text),
    must("object_prefix", Text),
    must("launch_id", Text),
    must("cursor", BigInteger),
    must("epoch", BigInteger),
    must("trigger", Text),
    must("total_bytes", BigInteger),
    must("written_bytes", BigInteger),
    must("blocking_s", Double),
    must("metrics_json", Text),
    must("committed_at", UtcTime),
    # added later: the commit in microseconds since 1970, and what its launch had spent by then
    may("committed_us", BigInteger),
    may("spent_steps_s", Double),
    may("spent_data_s", Double),
    may("spent_saving_s", Double),
    may("spent_eval_s", Double),
    # when each was first decided
    may("superseded_at", UtcTime),
    may("quarantined_at", UtcTime),
    may("deleted_at", UtcTime),
    may("withdrawn_us", BigInteger),  # when it was first quarantined or deleted
    Index("ix_checkpoints_attempt", "run_id", "attempt_id", "step", "committed_at"),
    Index("ix_checkpoints_manifest", "manifest_sha256"),
)

evals = Table(
    "evals",
    metadata,
    key("run_id", Text),
    key("eval_id", Text),
    key("number", BigInteger),
    must("attempt_id", BigInteger),  # of the checkpoint
    must("step", BigInteger),
    must("manifest_sha256", Text),
    must("suite", Text),
    must("suite_version", Text),
    must("dataset", Text),
    must("snapshot_id", Text),
    must("seed", BigInteger),
    must("decision", Text),
    must("decided_by", Text),
    may("dagster_run_id", Text),
    must("opened_at", UtcTime),
    may("started_at", UtcTime),
    may("ended_at", UtcTime),
    may("reason", Text),  # completed, or why it failed
    may("message", Text),
    may("metrics_json", Text),
    may("sample_count", BigInteger),
    may("device_seconds", Double),
    may("environment_sha256", Text),
    # added later: when its end was recorded, and how long that was after the checkpoint's commit
    may("ended_us", BigInteger),
    may("lag_s", Double),
    Index("ix_evals_checkpoint", "run_id", "manifest_sha256"),
    Index("ix_evals_snapshot", "dataset", "snapshot_id"),
)

promotions = Table(
    "promotions",
    metadata,
    key("run_id", Text),
    key("seq", BigInteger),
    must("alias", Text),
    must("promoted", Boolean),  # false is a refusal, recorded all the same
    must("attempt_id", BigInteger),
    must("step", BigInteger),
    must("manifest_sha256", Text),
    must("eval_id", Text),
    must("eval_number", BigInteger),
    must("suite", Text),
    must("suite_version", Text),
    must("dataset", Text),
    must("snapshot_id", Text),
    must("seed", BigInteger),
    must("environment_sha256", Text),
    must("metric", Text),
    may("value", Double),
    must("direction", Text),
    must("threshold", Double),
    must("metrics_json", Text),
    must("decided_by", Text),
    must("why", Text),
    must("decided_at", UtcTime),
    may("is_withheld", Boolean),  # refused while a source was in quarantine
    Index("ix_promotions_checkpoint", "run_id", "manifest_sha256"),
    # "Who holds this alias?"
    Index("ix_promotions_alias", "alias", "decided_at"),
    # "Which may be decided again?" at every tick.
    Index(
        "ix_promotions_withheld",
        "decided_at",
        "run_id",
        sqlite_where=text("is_withheld"),
        postgresql_where=text("is_withheld"),
    ),
)

notes = Table(
    "notes",
    metadata,
    key("run_id", Text),
    key("seq", BigInteger),
    must("kind", Text),  # note or alert
    may("attempt_id", BigInteger),
    must("author", Text),  # who wrote the note, or the rule that raised the alert
    must("text", Text),
    must("data_json", Text),
    must("noted_at", UtcTime),
)
