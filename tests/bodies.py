"""Bodies of records for tests, complete and valid; keyword arguments replace single fields."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from tracks_dagster.track.bodies import (
    AttemptEnded,
    AttemptPlaced,
    CheckpointCadence,
    CodeVersion,
    ComputeRequest,
    Debit,
    EvalRequirement,
    PromotionRule,
    RankPlace,
    RunDeclared,
    SnapshotRef,
)
from tracks_dagster.track.records import format_time, sha256_hex

BEGIN = datetime(2026, 1, 31, 2, 0, tzinfo=UTC)
CONFIG: Mapping[str, Any] = {"steps": 40, "seed": 7, "micro_batch": 4, "accumulation": 6}
HELDOUT = SnapshotRef(dataset="aws-docs-heldout", snapshot_id=sha256_hex(b"heldout"))
TRAIN = SnapshotRef(dataset="aws-docs", snapshot_id=sha256_hex(b"train"))
PACKAGES = b"torch==2.13.0\n"  # of an interpreter

# What a retry costs where no test cares: a retry without a debit is not a record of ours.
FREE = Debit(reason="unknown", amount=0.0, fingerprint=None, why="free in tests")


def declared(run_id: str = "r-1", **changes: Any) -> RunDeclared:
    """Return the body of a `run_declared` of a small GPT on text, with `changes`."""
    fields: dict[str, Any] = {
        "run_id": run_id,
        "model_family": "gpt",
        "config": CONFIG,
        "snapshot": TRAIN,
        "code": CodeVersion(git_commit="c0ffee", branch="main", dirty=False, package_version="0"),
        "owner": "ann",
        "team": "research",
        "stage": "smoke",
        "intent": "See that a run survives.",
        "compute": ComputeRequest(ranks=2),
        "cadence": CheckpointCadence(every_steps=10),
        "estimated_device_s": 600.0,
        "evals": (
            EvalRequirement(suite="heldout-loss", suite_version="1", snapshot=HELDOUT, seed=7),
        ),
        "promotion": PromotionRule(
            alias="best", suite="heldout-loss", metric="loss", direction="min", threshold=5.5
        ),
    }
    return RunDeclared(**fields | changes)


def placed(launch_id: str, *, world_size: int = 2, **changes: Any) -> AttemptPlaced:
    """Return the body of an `attempt_placed` with `world_size` ranks on one node."""
    ranks = tuple(
        RankPlace(
            rank=rank,
            node="node-1",
            pid=100 + rank,
            pid_started=1.5,
            boot_id="boot-1",
            device="cpu",
            accelerator="cpu",
        )
        for rank in range(world_size)
    )
    fields: dict[str, Any] = {
        "launch_id": launch_id,
        "world_size": world_size,
        "ranks": ranks,
        "image": None,
        "environment": {"python": "3.11"},
        "environment_sha256": sha256_hex(b"environment"),
        "packages_sha256": sha256_hex(PACKAGES),
    }
    return AttemptPlaced(**fields | changes)


def ended(
    reason: str, *, last_step: int | None = None, at: datetime = BEGIN, **changes: Any
) -> AttemptEnded:
    """Return the body of an `attempt_ended` at `at`, a minute after its start."""
    fields: dict[str, Any] = {
        "reason": reason,
        "confidence": 1.0,
        "rule": "condition",  # a control plane recorded it
        "lines": ("a line",),
        "classifier_version": "1",
        "evidence_key": "evidence.json",
        "evidence_sha256": sha256_hex(b"evidence"),
        "device_seconds": 120.0,
        "accelerator": "cpu",
        "started_at": format_time(at - timedelta(seconds=60)),
        "finished_at": format_time(at),
        "last_step": last_step,
        "first_line_ran": True,
        "root_message": f"the root of {reason}",
        "fingerprint": f"{reason}:root",
        "closed_by": "tests",
    }
    return AttemptEnded(**fields | changes)


# What an evaluator leaves in the store.
EVAL_RESULT: Mapping[str, Any] = {
    "metrics": {"loss": 2.5, "perplexity": 12.2},
    "sample_count": 512,
    "environment": {"python": "3.11", "torch": "2.13"},
    "environment_sha256": sha256_hex(b"environment"),
    "started_at": format_time(BEGIN),
    "finished_at": format_time(BEGIN + timedelta(seconds=5)),
}
