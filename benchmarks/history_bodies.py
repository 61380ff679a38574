"""The bodies of a generated run's declaration, evals and promotions, as JSON, and what records share.

Every body is made of its dataclass, so that it has all fields of today.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from benchmarks.history_plan import DATASETS, EVERY_STEPS, RunPlan
from tracks_dagster.track.bodies import (
    CheckpointCadence,
    CodeVersion,
    ComputeRequest,
    EvalEnded,
    EvalOpened,
    EvalRequirement,
    PromotionDecided,
    PromotionRule,
    RunDeclared,
    SnapshotRef,
)
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.records import Json, canonical_json, format_time, sha256_hex
from tracks_dagster.track.states.checkpoints import CheckpointRef

Body = Mapping[str, Json]

GLOBAL_BATCH = 1024
EVAL_S = 30.0
SUITE, METRIC, THRESHOLD = "heldout-loss", "loss", 2.2
ENVIRONMENT = {"python": "3.12.3", "torch": "2.8.0", "numpy": "2.1.0", "platform": "linux-x86_64"}
ENVIRONMENT_SHA256 = sha256_hex(canonical_json(ENVIRONMENT))
TEAMS = ("research", "ranking", "speech", "forecasts", "safety")
PEOPLE = ("ann", "bo", "chen", "dora", "emil", "fay", "gus")
DEVICE_CLASS = "h100"


def snapshot_ref(dataset: str, number: int) -> SnapshotRef:
    """Return snapshot `number` (0-based) of a dataset."""
    return SnapshotRef(dataset=dataset, snapshot_id=sha256_hex(f"{dataset} {number}".encode()))


def trained_on(run: RunPlan) -> SnapshotRef:
    """Return the snapshot that the run was declared with."""
    return snapshot_ref(DATASETS[run.family], run.snapshot)


def heldout(run: RunPlan) -> SnapshotRef:
    """Return the snapshot that the run's checkpoints are evaluated on."""
    return snapshot_ref(f"{DATASETS[run.family]}-heldout", 0)


def declared(run: RunPlan) -> Body:
    """Return the body of `run_declared`."""
    last = run.attempts[-1]
    steps = last.last_step if last.end == "completed" else last.last_step + 50 * EVERY_STEPS
    return to_json(
        RunDeclared(
            run_id=run.run_id,
            model_family=run.family,
            config=config_of(run, steps, 16),
            snapshot=trained_on(run),
            code=CodeVersion(
                git_commit=sha256_hex(f"commit {run.index // 40}".encode())[:40],
                branch="main",
                dirty=run.index % 17 == 0,
                package_version="0.1.0",
            ),
            owner=PEOPLE[run.index % len(PEOPLE)],
            team=TEAMS[run.index // 10 % len(TEAMS)],
            stage=run.stage,
            intent=f"See whether a longer warm-up of {run.index % 90 + 10} steps helps {run.family}.",
            compute=_compute(run),
            cadence=CheckpointCadence(every_steps=EVERY_STEPS),
            estimated_device_s=run.ranks * last.ended_s,
            evals=(EvalRequirement(suite=SUITE, suite_version="1", snapshot=heldout(run), seed=7),),
            promotion=PromotionRule(
                alias=f"best-{run.family}",
                suite=SUITE,
                metric=METRIC,
                direction="min",
                threshold=THRESHOLD,
            ),
            branched_from=run.branched_from,
        )
    )


def config_of(run: RunPlan, steps: int, micro_batch: int) -> dict[str, Any]:
    """Return the config of an attempt; only the micro-batch may differ from the declaration's."""
    return {
        "steps": steps,
        "seed": run.index % 1000,
        "global_batch": GLOBAL_BATCH,
        "micro_batch": micro_batch,
        "accumulation": GLOBAL_BATCH // (micro_batch * run.ranks),
        "lr": 0.0003,
        "warmup_steps": run.index % 90 + 10,
        "weight_decay": 0.01,
        "dropout": 0.1,
        "d_model": 512,
        "layers": 8,
    }


def loss_at(step: int) -> float:
    """Return the loss at a step: falls, and never repeats."""
    return round(1.8 + 60.0 / (step + 10), 6)


def at(run: RunPlan, seconds: float) -> str:
    """Return the text time so many seconds after the run was declared."""
    return format_time(run.declared_at + timedelta(seconds=seconds))


def _compute(run: RunPlan) -> ComputeRequest:
    return ComputeRequest(ranks=run.ranks, device_class=DEVICE_CLASS, pool=run.pool)


def eval_opened(run: RunPlan, checkpoint: CheckpointRef) -> Body:
    """Return the body of `eval_opened`, the first attempt at the eval of a checkpoint."""
    return to_json(
        EvalOpened(
            eval_id=f"{SUITE}@{checkpoint.step}",
            number=1,
            checkpoint=checkpoint,
            suite=SUITE,
            suite_version="1",
            snapshot=heldout(run),
            seed=7,
            decision="The run's declaration requires it.",
            decided_by="run_evals",
        )
    )


def eval_ended(run: RunPlan, checkpoint: CheckpointRef, begun_s: float) -> Body:
    """Return the body of `eval_ended`; begun_s: seconds from the declaration to its begin."""
    return to_json(
        EvalEnded(
            eval_id=f"{SUITE}@{checkpoint.step}",
            number=1,
            reason="completed",
            metrics={METRIC: loss_at(checkpoint.step)},
            sample_count=512,
            environment=ENVIRONMENT,
            environment_sha256=ENVIRONMENT_SHA256,
            started_at=at(run, begun_s),
            finished_at=at(run, begun_s + EVAL_S),
            device_seconds=EVAL_S,
        )
    )


def promotion(run: RunPlan, checkpoint: CheckpointRef) -> Body:
    """Return the body of `promotion_decided`."""
    loss = loss_at(checkpoint.step)
    return to_json(
        PromotionDecided(
            alias=f"best-{run.family}",
            promoted=loss <= THRESHOLD,
            checkpoint=checkpoint,
            eval_id=f"{SUITE}@{checkpoint.step}",
            eval_number=1,
            suite=SUITE,
            suite_version="1",
            snapshot=heldout(run),
            seed=7,
            environment_sha256=ENVIRONMENT_SHA256,
            metrics={METRIC: loss},
            metric=METRIC,
            direction="min",
            threshold=THRESHOLD,
            decided_by="run_evals",
            why=f"{METRIC} of {SUITE} is {loss}; the rule asks for at most {THRESHOLD}.",
        )
    )
