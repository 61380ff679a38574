"""Keep the store tidy: verify, supersede and delete checkpoints every 15 minutes."""

from dagster import (
    DefaultScheduleStatus,
    OpExecutionContext,
    ResourceParam,
    RunRequest,
    ScheduleEvaluationContext,
    in_process_executor,
    job,
    op,
    schedule,
)

from tracks_dagster.checkpoints.effects.collection import collect_all
from tracks_dagster.clean_errors import without_secrets
from tracks_dagster.track import names
from tracks_dagster.wiring import App

EVERY_15_MINUTES = "*/15 * * * *"


@op(description="One bounded pass over the open and the recently finished runs.")
@without_secrets
def collect_runs(context: OpExecutionContext, app: ResourceParam[App]) -> None:
    """Collect, and log what was done for each run that changed."""
    policy, no_policy = app.usable_policy()
    if no_policy is not None:
        context.log.error(app.redact(no_policy))
    done = collect_all(
        app.tracks,
        app.ledger,
        app.checkpoints,
        app.leftovers,
        by=names.COLLECT_CHECKPOINTS_JOB,
        policy=policy,
    )
    for verified in done.decisive:
        context.log.info(
            f"{verified.ref.run_id}: step {verified.ref.step}, which a retry waited for, is "
            f"{verified.status}"
        )
    for each in done.runs:
        for corrupt in each.corrupt:
            problem = f"{each.run_id}: step {corrupt.ref.step} is corrupt: {corrupt.problem}"
            context.log.error(app.redact(problem))
        for waiting in each.waiting:
            context.log.warning(app.redact(f"{each.run_id}: a deletion waits: {waiting}"))
        if each.superseded or each.deleted or each.leftover_count:
            context.log.info(
                f"{each.run_id}: {len(each.superseded)} superseded, {len(each.deleted)} deleted, "
                f"{each.freed_bytes} bytes freed, {each.leftover_count} leftover objects removed"
            )
    for problem in done.problems:
        context.log.warning(app.redact(problem))
    context.add_output_metadata(
        {
            "runs": len(done.runs),
            "superseded": sum(len(each.superseded) for each in done.runs),
            "deleted": sum(len(each.deleted) for each in done.runs),
            "freed_bytes": sum(each.freed_bytes for each in done.runs),
            "swept": done.swept_count,
            "corrupt": sum(len(each.corrupt) for each in done.runs),
        }
    )


@job(
    name=names.COLLECT_CHECKPOINTS_JOB,
    executor_def=in_process_executor,
    description=(
        "Reads the newest checkpoint of every run in full, lets go of those that retention no longer "
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
