"""Evals and promotions as flat, named values: what Dagster's UI shows of them.

Units stand in the keys, where a value has one.
"""

from __future__ import annotations

from tracks_dagster.track.bodies import EvalEnded, EvalOpened, PromotionDecided
from tracks_dagster.track.names import checkpoint_key
from tracks_dagster.track.records import Json, canonical_json, sha256_hex
from tracks_dagster.track.states.checkpoints import CheckpointRef


def eval_metadata(opened: EvalOpened, ended: EvalEnded) -> dict[str, Json]:
    """Return what one attempt at an eval measured, on exactly what."""
    return {
        **_checkpoint(opened.checkpoint),
        "suite": opened.suite,
        "suite_version": opened.suite_version,
        "dataset": opened.snapshot.dataset,
        "snapshot_id": opened.snapshot.snapshot_id,
        "seed": opened.seed,
        "attempt_at_this_eval": opened.number,
        "opened_because": opened.decision,
        "reason": ended.reason,
        "sample_count": ended.sample_count,
        "environment": dict(ended.environment),
        "environment_sha256": ended.environment_sha256,
        "started_at": ended.started_at,
        "finished_at": ended.finished_at,
        "device_seconds": ended.device_seconds,
        "look_up/where_it_comes_from": (
            f"tracks lineage eval:{opened.checkpoint.run_id}/{opened.eval_id}"
        ),
        **{f"metrics/{name}": value for name, value in sorted(ended.metrics.items())},
    }


def promotion_metadata(decided: PromotionDecided) -> dict[str, Json]:
    """Return what a promotion, or its refusal, rests on."""
    return {
        "alias": decided.alias,
        "promoted": decided.promoted,
        "why": decided.why,
        "decided_by": decided.decided_by,
        **_checkpoint(decided.checkpoint),
        "eval": f"{decided.checkpoint.run_id}/{decided.eval_id}",
        "suite": decided.suite,
        "suite_version": decided.suite_version,
        "snapshot_id": decided.snapshot.snapshot_id,
        "seed": decided.seed,
        "environment_sha256": decided.environment_sha256,
        "metric": decided.metric,
        "direction": decided.direction,
        "threshold": decided.threshold,
        "look_up/where_it_comes_from": (
            f"tracks lineage promotion:{decided.checkpoint.run_id}/{decided.alias}"
        ),
        **{f"metrics/{name}": value for name, value in sorted(decided.metrics.items())},
    }


def result_sha256(ended: EvalEnded) -> str:
    """Return the version of what was measured: the same metrics have the same."""
    measured = {"metrics": dict(ended.metrics), "sample_count": ended.sample_count}
    return sha256_hex(canonical_json(measured))


def _checkpoint(ref: CheckpointRef) -> dict[str, Json]:
    return {
        "training_run_id": ref.run_id,
        "checkpoint": checkpoint_key(ref.run_id, ref.attempt_id, ref.step),
        "manifest_sha256": ref.manifest_sha256,
    }
