"""The checkpoints asset shows what the tracks have committed; a schedule keeps the store tidy.

Nothing computes it: rank 0 commits a checkpoint in the track of its run, and the one who supervises the
attempt reports it to Dagster. Its partitions are registered as checkpoints appear. Every 15 minutes
checkpoints are verified, superseded and deleted.
"""

from datetime import timedelta

from dagster import (
    AssetSpec,
    JobDefinition,
    OpExecutionContext,
    ResourceParam,
    RunRequest,
    ScheduleDefinition,
    ScheduleEvaluationContext,
    in_process_executor,
    job,
    op,
    schedule,
)

from tracks_dagster.checkpoints.effects.collection import TICK_S_MAX, collect_due, read_what_decides
from tracks_dagster.checkpoints.effects.retention import Collected
from tracks_dagster.defs.assets.attempts import how_to_start
from tracks_dagster.defs.site import Site
from tracks_dagster.track import names
from tracks_dagster.wiring import App

EVERY_15_MINUTES = "*/15 * * * *"


def checkpoints(site: Site) -> AssetSpec:
    """Return the asset."""
    return AssetSpec(
        key=site.key(names.CHECKPOINT_PARTITIONS),
        deps=[site.shown_after(names.ATTEMPT_PARTITIONS)],
        partitions_def=site.partitions(names.CHECKPOINT_PARTITIONS),
        group_name="training",
        kinds={"pytorch"},
        owners=["team:training"],
        description=(
            "Every committed checkpoint of every training run.\n\n"
            f"{how_to_start(site.prefix)}\n\n"
            "A partition is called `RUN/aNN/step-STEP`. A checkpoint appears here after its commit "
            "record is in the run's track, and only that record makes it real. Weights, optimizer, "
            "RNG and data cursor of one step, verified by hash whenever they are read. Never red: a "
            "save that failed leaves no checkpoint. `tracks checkpoints list RUN` shows what was "
            "superseded or quarantined since."
        ),
    )


def _collect(context: OpExecutionContext, app: ResourceParam[App]) -> None:
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


def collect_checkpoints(site: Site) -> JobDefinition:
    """Return the job that collects the checkpoints of the runs whose turn it is."""
    collect_runs = op(
        name=site.name("collect_runs"),
        description="One bounded pass over the open and the recently finished runs.",
    )(site.body(_collect))

    @job(
        name=site.name(names.COLLECT_CHECKPOINTS_JOB),
        tags=names.NO_RETRIES,
        executor_def=in_process_executor,
        description=(
            "Reads the newest checkpoint of every run in full, supersedes those that retention no "
            "longer keeps, and deletes them after their grace. Every decision is a record in the run's "
            "track; `tracks checkpoints gc RUN --dry-run` shows what it would do. Safe to launch by "
            "hand."
        ),
    )
    def collect() -> None:
        collect_runs()

    return collect


def collect_checkpoints_every_15_minutes(site: Site) -> ScheduleDefinition:
    """Return the schedule."""
    return schedule(
        name=site.name(names.COLLECT_CHECKPOINTS),
        job_name=site.name(names.COLLECT_CHECKPOINTS_JOB),
        cron_schedule=EVERY_15_MINUTES,
        execution_timezone="UTC",
        default_status=site.schedule_status,
        description=(
            "Collects checkpoints every 15 minutes. Off: nothing is verified or deleted, and the store "
            "grows; training is not touched either way."
        ),
    )(_requested)


def _requested(context: ScheduleEvaluationContext) -> RunRequest:
    """Request one pass; a repeated tick requests the same one."""
    return RunRequest(run_key=context.scheduled_execution_time.strftime("%Y%m%dT%H%M"))
