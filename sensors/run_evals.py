"""Asks for the evals that runs owe, and decides their promotion when the evals are settled."""

from dagster import (
    AddDynamicPartitionsRequest,
    AssetKey,
    AssetMaterialization,
    AssetObservation,
    DefaultSensorStatus,
    ResourceParam,
    RunRequest,
    SensorEvaluationContext,
    SensorResult,
    sensor,
)

from tracks_dagster.attempts.effects.eval_tick import EvalRequest, EvalsOfRun, tick_evals
from tracks_dagster.attempts.effects.heartbeat import write_launches
from tracks_dagster.attempts.ports import Orchestrator
from tracks_dagster.clean_errors import without_secrets
from tracks_dagster.ledger.effects.ticks import Tick, TickPart, TimeSlice, run_parts, skip_reason
from tracks_dagster.review.effects.metadata import promotion_metadata
from tracks_dagster.scheduling.policy import EVAL
from tracks_dagster.track import names
from tracks_dagster.track.bodies import PromotionDecided
from tracks_dagster.wiring import App


@sensor(
    name=names.RUN_EVALS,
    job_name=names.EVALUATE_CHECKPOINT_JOB,
    minimum_interval_seconds=5,
    default_status=DefaultSensorStatus.RUNNING,
    description=(
        "Requests a Dagster run for every eval that a run with all its steps owes, or that a person "
        "asked for with `tracks eval`, tries a failed one again within its budget, and decides the "
        "promotion when the evals are settled. Off: runs with all their steps wait for their evals "
        "and are not finished."
    ),
)
@without_secrets
def run_evals(
    context: SensorEvaluationContext,
    app: ResourceParam[App],
    orchestrator: ResourceParam[Orchestrator],
) -> SensorResult:
    """Do one tick; its run keys, which the tracks give, make a repeated tick harmless."""
    policy, no_policy = app.usable_policy()
    if no_policy is not None:
        context.log.error(app.redact(no_policy))
    world = app.world(policy, orchestrator)
    part = TickPart(
        name="evals",
        work=lambda after: tick_evals(
            world, TimeSlice(after=after), is_promoting=no_policy is None
        ),
    )
    ticks, cursor = run_parts((part,), context.cursor, app.now())
    tick: Tick[EvalsOfRun] = ticks[part.name]
    context.update_cursor(cursor)
    write_launches(app.store, names.RUN_EVALS, [each for run in tick.done for each in run.pending])
    for problem in tick.problems:
        context.log.warning(app.redact(problem))
    requests = [request for run in tick.done for request in run.requests]
    keys = [request.eval_key for request in requests]
    priority = policy.scheduling.class_of(EVAL).priority
    return SensorResult(
        run_requests=[_run_request(request, priority=priority) for request in requests],
        skip_reason=None if keys else app.redact(skip_reason(tick, idle="no run owes an eval")),
        dynamic_partitions_requests=[AddDynamicPartitionsRequest(names.EVAL_PARTITIONS, keys)],
        asset_events=[_event(decided) for run in tick.done for decided in run.promotions],
    )


def _run_request(request: EvalRequest, *, priority: int) -> RunRequest:
    tags = {names.TAG_TRAINING_RUN: request.run_id, names.TAG_EVAL: request.attempt_key}
    tags[names.TAG_PRIORITY] = str(priority)
    if request.lease_seq is None:
        tags[names.TAG_NO_LEASE] = "true"
    else:
        tags[names.TAG_LEASE] = str(request.lease_seq)
    return RunRequest(run_key=request.run_key, partition_key=request.eval_key, tags=tags)


def _event(decided: PromotionDecided) -> AssetMaterialization | AssetObservation:
    """A promotion is something made; a refusal only says what was found."""
    key, metadata = AssetKey(names.PROMOTIONS), promotion_metadata(decided)
    if not decided.promoted:
        return AssetObservation(asset_key=key, metadata=metadata)
    return AssetMaterialization(
        asset_key=key,
        metadata=metadata,
        tags={names.TAG_DATA_VERSION: decided.checkpoint.manifest_sha256},
    )
