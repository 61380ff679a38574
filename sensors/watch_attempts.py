"""Closes attempts that nobody supervises any more, and decides every reason no other sensor owns."""

from collections.abc import Mapping

from dagster import (
    AddDynamicPartitionsRequest,
    AssetKey,
    AssetMaterialization,
    AssetObservation,
    DefaultSensorStatus,
    ResourceParam,
    SensorEvaluationContext,
    SensorResult,
    sensor,
)
from dagster._core.scheduler.instigation import InstigatorStatus, InstigatorType

from tracks_dagster.core import names
from tracks_dagster.core.names import attempt_key
from tracks_dagster.core.ports import Orchestrator
from tracks_dagster.services.checkpoint_reports import CheckpointReport, due_reports
from tracks_dagster.services.receipt_metadata import attempt_metadata
from tracks_dagster.services.watch import (
    close_lost,
    scan_if_due,
    settle_open_runs,
    write_heartbeat,
)
from tracks_dagster.wiring import App

SENSORS = (
    names.LAUNCH_ATTEMPTS,
    names.RETRY_OOM,
    names.RETRY_PREEMPTED,
    names.RUN_EVALS,
    names.WATCH_ATTEMPTS,
)


@sensor(
    name=names.WATCH_ATTEMPTS,
    minimum_interval_seconds=5,
    default_status=DefaultSensorStatus.RUNNING,
    description=(
        "Closes an attempt whose gang is gone when no Dagster run supervises it, decides what "
        "follows on every reason that has no sensor of its own, and finishes runs. Off: lost "
        "attempts stay open, and completed runs are not finished."
    ),
)
def watch_attempts(
    context: SensorEvaluationContext,
    app: ResourceParam[App],
    orchestrator: ResourceParam[Orchestrator],
) -> SensorResult:
    """Do one tick; the cursor holds when the whole store was last scanned."""
    write_heartbeat(app.store, app.now(), _switches(context))
    scanned_at, unscanned = scan_if_due(app.projector, context.cursor, app.now())
    context.update_cursor(scanned_at)
    lost = close_lost(app.tracks, app.ledger, app.gangs, orchestrator, clean=app.redact)
    settled = settle_open_runs(
        app.tracks, app.ledger, sensor=names.WATCH_ATTEMPTS, policy=app.policy
    )
    for problem in (*unscanned, *lost.problems, *settled.problems):
        context.log.warning(problem)
    closed = [(run_id, attempt.attempt_id) for run_id, attempt in lost.closed]
    commits = [report for each in closed for report in _due_reports(context, app, *each)]
    return SensorResult(
        skip_reason="; ".join(settled.decided) or "nothing is due",
        dynamic_partitions_requests=[
            AddDynamicPartitionsRequest(
                names.CHECKPOINT_PARTITIONS, [commit.key for commit in commits]
            )
        ],
        asset_events=[
            *(_commit(commit) for commit in commits),
            *(_receipt(app, run_id, attempt_id) for run_id, attempt_id in closed),
        ],
    )


def _due_reports(
    context: SensorEvaluationContext, app: App, run_id: str, attempt_id: int
) -> list[CheckpointReport]:
    reported = context.instance.get_dynamic_partitions(names.CHECKPOINT_PARTITIONS)
    return due_reports(app.tracks.run(run_id), attempt_id, set(reported))


def _commit(commit: CheckpointReport) -> AssetMaterialization:
    return AssetMaterialization(
        asset_key=AssetKey(names.CHECKPOINT_PARTITIONS),
        partition=commit.key,
        metadata=commit.metadata,
        tags={names.TAG_DATA_VERSION: commit.manifest_sha256},
    )


def _receipt(app: App, run_id: str, attempt_id: int) -> AssetObservation:
    """Report what nobody else can: this attempt's Dagster run died before its end."""
    return AssetObservation(
        asset_key=AssetKey(names.ATTEMPT_PARTITIONS),
        partition=attempt_key(run_id, attempt_id),
        metadata=attempt_metadata(app.tracks, run_id, attempt_id),
    )


def _switches(context: SensorEvaluationContext) -> Mapping[str, bool]:
    """Return which of our sensors are on; one that nobody ever switched runs, its default."""
    states = context.instance.all_instigator_state(instigator_type=InstigatorType.SENSOR)
    off = {state.name for state in states if state.status is InstigatorStatus.STOPPED}
    return {name: name not in off for name in SENSORS}
