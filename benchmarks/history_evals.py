"""The bodies of a generated run's evals and promotions, as JSON."""

from __future__ import annotations

from benchmarks.history_bodies import (
    ENVIRONMENT,
    ENVIRONMENT_SHA256,
    METRIC,
    SUITE,
    THRESHOLD,
    Body,
    at,
    heldout,
    loss_at,
)
from benchmarks.history_plan import RunPlan
from tracks_dagster.track.bodies import EvalEnded, EvalOpened, PromotionDecided
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.states.checkpoints import CheckpointRef

EVAL_S = 30.0


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
