"""The checkpoints asset shows what the tracks have committed; a schedule keeps the store tidy.

Nothing computes it: rank 0 commits a checkpoint in the track of its run, and whoever supervises the
attempt reports it to Dagster. Its partitions are registered as checkpoints appear. Every 15 minutes
checkpoints are verified, superseded and deleted.
"""

from datetime import timedelta

from dagster import (
    AssetSpec,
    DefaultScheduleStatus,
    DynamicPartitionsDefinition,
    OpExecutionContext,
    ResourceParam,
    RunRequest,
    ScheduleEvaluationContext,
    in_process_executor,
    job,
    op,
    schedule,
)

from tracks_dagster.checkpoints.effects.collection import TICK_S_MAX, collect_due, read_what_decides
from tracks_dagster.checkpoints.effects.retention import Collected
from tracks_dagster.clean_errors import without_secrets
from tracks_dagster.defs.assets.attempts import HOW_TO_START
from tracks_dagster.track import names
from tracks_dagster.wiring import App

EVERY_15_MINUTES = "*/15 * * * *"

checkpoints = AssetSpec(
    key=names.CHECKPOINT_PARTITIONS,
    deps=[names.ATTEMPT_PARTITIONS],
    partitions_def=DynamicPartitionsDefinition(name=names.CHECKPOINT_PARTITIONS),
    group_name="training",
    kinds={"pytorch"},
    owners=["team:training"],
    description=(
        "Every committed checkpoint of every training run.\n\n"
        f"{HOW_TO_START}\n\n"
        "A partition is called `RUN/aNN/step-STEP`. A checkpoint appears here after its commit "
        "record is in the run's track, and only that record makes it real. Weights, optimizer, "
        "RNG and data cursor of one step, verified by hash whenever they are read. Never red: a "
        "save that failed leaves no checkpoint. `tracks checkpoints list RUN` shows what was "
        "superseded or quarantined since."
    ),
)


@op(description="One bounded pass over the open and the recently finished runs.")
@without_secrets
def collect_runs(context: OpExecutionContext, app: ResourceParam[App]) -> None:
    """Collect, and log what was done for each run that changed."""
    policy, no_policy = app.usable_policy()
    if no_policy is not None:
        context.log.error(app.redact(no_policy))
    until = app.now() + timedelta(seconds=TICK_S_MAX)
    by = names.COLLECT_CHECKPOINTS_JOB
    decisive = read_what_decides(
        app.tracks, app.ledger, app.checkpoints, policy, by=by, until=until
    )
    swept_count = app.leftovers.sweep()
    collected = collect_due(app.tracks, app.ledger, app.checkpoints, by=by, until=until)
    for verified in decisive.done:
        context.log.info(
            f"{verified.ref.run_id}: step {verified.ref.step}, which a retry waited for, is "
            f"{verified.status}"
        )
    for each in collected.done:
        _log(context, app, each)
    for problem in (*decisive.problems, *collected.problems):
        context.log.warning(app.redact(problem))
    if collected.cut_at is not None:
        context.log.warning(f"The runs after {collected.cut_at} had no time in this tick.")
    context.add_output_metadata(
        {
            "runs": len(collected.done),
            "superseded": sum(len(each.superseded) for each in collected.done),
            "deleted": sum(len(each.deleted) for each in collected.done),
            "freed_bytes": sum(each.freed_bytes for each in collected.done),
            "swept": swept_count,
            "corrupt": sum(len(each.corrupt) for each in collected.done),
        }
    )


def _log(context: OpExecutionContext, app: App, done: Collected) -> None:
    """Log what was done on one run, if anything was."""
    for corrupt in done.corrupt:
        problem = f"{done.run_id}: step {corrupt.ref.step} is corrupt: {corrupt.problem}"
        context.log.error(app.redact(problem))
    for waiting in done.waiting:
        context.log.warning(app.redact(f"{done.run_id}: a deletion waits: {waiting}"))
    if done.superseded or done.deleted or done.leftover_count:
        context.log.info(
            f"{done.run_id}: {len(done.superseded)} superseded, {len(done.deleted)} deleted, "
            f"{done.freed_bytes} bytes freed, {done.leftover_count} leftover objects removed"
        )


@job(
    name=names.COLLECT_CHECKPOINTS_JOB,
    tags=names.NO_RETRIES,
    executor_def=in_process_executor,
    description=(
        "Reads the newest checkpoint of every run in full, supersedes those that retention no longer "
        "keeps, and deletes them after their grace. Every decision is a record in the run's track; "
        "`tracks checkpoints gc RUN --dry-run` shows what it would do. Safe to launch by hand."
    ),
)
def collect_checkpoints() -> None:
    """Collect the checkpoints of the runs whose turn it is."""
    collect_runs()


@schedule(
    name=names.COLLECT_CHECKPOINTS,
    job=collect_checkpoints,
    cron_schedule=EVERY_15_MINUTES,
    execution_timezone="UTC",
    default_status=DefaultScheduleStatus.RUNNING,
    description=(
        "Collects checkpoints every 15 minutes. Off: nothing is verified or deleted, and the store "
        "grows; training is not touched either way."
    ),
)
def collect_checkpoints_every_15_minutes(context: ScheduleEvaluationContext) -> RunRequest:
    """Request one pass; a repeated tick requests the same one."""
    return RunRequest(run_key=context.scheduled_execution_time.strftime("%Y%m%dT%H%M"))
