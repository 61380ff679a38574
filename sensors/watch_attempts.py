"""Closes attempts that nobody supervises any more, and decides every reason no other sensor owns."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from dagster import (
    AddDynamicPartitionsRequest,
    AssetCheckEvaluation,
    AssetCheckSeverity,
    AssetKey,
    AssetMaterialization,
    AssetObservation,
    DefaultSensorStatus,
    DeleteDynamicPartitionsRequest,
    MetadataValue,
    ResourceParam,
    SensorEvaluationContext,
    SensorResult,
    sensor,
)
from dagster._core.scheduler.instigation import InstigatorStatus, InstigatorType

from tracks_dagster.attempts.effects.heartbeat import write_heartbeat
from tracks_dagster.attempts.effects.ui_partitions import (
    LEAVE_MAX,
    finished_runs,
    leaving,
    prune_is_due,
    run_of,
)
from tracks_dagster.attempts.effects.watch import close_lost, settle_open_runs, skip_reason
from tracks_dagster.attempts.ports import Orchestrator
from tracks_dagster.checkpoints.effects.checkpoint_reports import CheckpointReport, due_reports
from tracks_dagster.clean_errors import without_secrets
from tracks_dagster.kubernetes.effects.sweep import sweep, sweep_is_due
from tracks_dagster.kubernetes.effects.tainting import keep_taints
from tracks_dagster.kubernetes.gangs.orphans import StandingGangs
from tracks_dagster.kubernetes.settings.node_taints import NodeTaints
from tracks_dagster.reasons.endings import ending_check
from tracks_dagster.retry.effects.upkeep import Upkeep, revisit_if_due, scan_if_due
from tracks_dagster.retry.watch_cursor import WatchCursor, read_cursor
from tracks_dagster.review.effects.receipt_metadata import Show, attempt_metadata, ending_tags
from tracks_dagster.settings import find_cluster_file
from tracks_dagster.track import names
from tracks_dagster.track.errors import TracksError
from tracks_dagster.track.names import attempt_key
from tracks_dagster.track.records import format_time
from tracks_dagster.track.states.run_state import AttemptState
from tracks_dagster.wiring import App

SENSORS = (
    names.LAUNCH_ATTEMPTS,
    names.RETRY_INFRASTRUCTURE,
    names.RETRY_NUMERICS,
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
@without_secrets
def watch_attempts(
    context: SensorEvaluationContext,
    app: ResourceParam[App],
    orchestrator: ResourceParam[Orchestrator],
) -> SensorResult:
    """Do one tick; the cursor holds what was done last and where a part of the tick was cut."""
    switches, cursor = _switches(context), read_cursor(context.cursor)
    (rules, no_rules), (policy, no_policy) = app.usable_rules(), app.usable_policy()
    write_heartbeat(app.store, app.now(), switches)
    lost = close_lost(
        app.tracks,
        app.ledger,
        app.launcher_of,
        orchestrator,
        clean=app.redact,
        rules=rules,
        after=cursor.close_after,
    )
    settled = settle_open_runs(
        app.tracks,
        app.ledger,
        sensor=names.WATCH_ATTEMPTS,
        policy=policy,
        decides=no_policy is None,
        checkpoints=app.checkpoints,
        off=[name for name, is_on in switches.items() if not is_on],
        after=cursor.settle_after,
    )
    revisited = revisit_if_due(
        app.tracks, app.ledger, cursor.revisited_at, app.now(), after=cursor.revisit_after
    )
    scanned = scan_if_due(app.projector, cursor.scanned_at, app.now(), after=cursor.scan_after)
    swept = _sweep_if_due(app, cursor.swept_at)
    pruned_at, dropped = _prune_if_due(context, app, cursor.pruned_at)
    unusable = [problem for problem in (no_policy, no_rules) if problem is not None]
    for problem in unusable:
        context.log.error(app.redact(problem))
    for part in (scanned, revisited, swept, lost, settled):
        for problem in part.problems:
            context.log.warning(app.redact(problem))
    remembered = WatchCursor(
        scanned_at=scanned.done_at,
        revisited_at=revisited.done_at,
        swept_at=swept.done_at,
        pruned_at=pruned_at,
        close_after=lost.cut_at,
        settle_after=settled.cut_at,
        scan_after=scanned.after,
        revisit_after=revisited.after,
    )
    context.update_cursor(remembered.text())
    looked = replace(settled, problems=(*settled.problems, *lost.problems, *swept.problems))
    closed = [(run_id, attempt.attempt_id) for run_id, attempt in lost.closed]
    for _, attempt in lost.closed:
        _tag_runs(context, attempt)
    commits = [report for each in closed for report in _due_reports(context, app, *each)]
    return SensorResult(
        skip_reason=app.redact("; ".join([*unusable, skip_reason(looked, idle="nothing is due")])),
        dynamic_partitions_requests=[
            AddDynamicPartitionsRequest(
                names.CHECKPOINT_PARTITIONS, [commit.key for commit in commits]
            ),
            *dropped,
        ],
        asset_events=[
            *(_commit(commit) for commit in commits),
            *(_receipt(app, run_id, attempt_id) for run_id, attempt_id in closed),
            *_checks(lost.closed),
        ],
    )


def _sweep_if_due(app: App, last_at: str | None) -> Upkeep:
    """End what outlived its attempt on the cluster, where one is set up, and keep its nodes' taints."""
    if find_cluster_file(app.settings) is None or not sweep_is_due(last_at, app.now()):
        return Upkeep(done_at=last_at)
    try:
        launcher = app.launcher_of(names.KUBERNETES)
    except TracksError as error:
        return Upkeep(done_at=format_time(app.now()), problems=(f"not swept: {error}",))
    if not isinstance(launcher, StandingGangs):
        return Upkeep(done_at=last_at)
    swept = sweep(app.tracks, app.ledger, launcher)
    if isinstance(launcher, NodeTaints):
        tainted = keep_taints(app.tracks, app.ledger, launcher)
        swept = replace(swept, problems=(*swept.problems, *tainted))
    return swept


def _prune_if_due(
    context: SensorEvaluationContext, app: App, last_at: str | None
) -> tuple[str | None, list[DeleteDynamicPartitionsRequest]]:
    """Let the partitions of runs that finished long ago leave the UI, LEAVE_MAX a tick; return when."""
    now = app.now()
    if not prune_is_due(last_at, now):
        return last_at, []
    requests, room = [], LEAVE_MAX
    for name in (names.ATTEMPT_PARTITIONS, names.CHECKPOINT_PARTITIONS, names.EVAL_PARTITIONS):
        keys = context.instance.get_dynamic_partitions(name)
        finished = finished_runs(app.ledger, sorted(set(map(run_of, keys))))
        left = leaving(keys, finished, now, keep_days=app.settings.ui_days)[:room]
        room -= len(left)
        if left:
            context.log.info(f"{len(left)} {name} of finished runs leave the UI, {left[0]} first.")
            requests.append(DeleteDynamicPartitionsRequest(name, left))
    return (format_time(now) if room else last_at), requests


def _due_reports(
    context: SensorEvaluationContext, app: App, run_id: str, attempt_id: int
) -> list[CheckpointReport]:
    """Return what Dagster was not told of; what cannot be read now holds up no receipt."""
    is_reported = partial(context.instance.has_dynamic_partition, names.CHECKPOINT_PARTITIONS)
    try:
        return due_reports(app.tracks.run(run_id), attempt_id, is_reported)
    except TracksError as error:
        context.log.warning(app.redact(f"{run_id}: its checkpoints are not shown: {error}"))
        return []


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
        metadata=attempt_metadata(
            app.tracks, run_id, attempt_id, Show.by(MetadataValue, app.settings.ui_url)
        ),
    )


def _checks(closed: Iterable[tuple[str, AttemptState]]) -> Iterator[AssetCheckEvaluation]:
    """Tell failures from interruptions, as a Dagster run that sees the end does."""
    for run_id, attempt in closed:
        if attempt.reason is None:
            continue
        told = ending_check(attempt.reason)
        yield AssetCheckEvaluation(
            asset_key=AssetKey(names.ATTEMPT_PARTITIONS),
            check_name=names.ENDED_AS_MEANT,
            partition=attempt_key(run_id, attempt.attempt_id),
            passed=told.passed,
            severity=AssetCheckSeverity.ERROR if told.is_failure else AssetCheckSeverity.WARN,
            description=told.words,
            metadata={},
        )


def _tag_runs(context: SensorEvaluationContext, attempt: AttemptState) -> None:
    """Let the list of runs find the dead Dagster run by how its attempt ended."""
    if attempt.reason is None or not attempt.claims:
        return
    dagster_run_id = attempt.claims[-1].body.dagster_run_id
    if context.instance.has_run(dagster_run_id):
        context.instance.add_run_tags(dagster_run_id, ending_tags(attempt.reason))


def _switches(context: SensorEvaluationContext) -> Mapping[str, bool]:
    """Return which of our sensors are on; one that nobody ever switched runs, its default."""
    states = context.instance.all_instigator_state(instigator_type=InstigatorType.SENSOR)
    off = {state.name for state in states if state.status is InstigatorStatus.STOPPED}
    return {name: name not in off for name in SENSORS}
