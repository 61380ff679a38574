"""Plays chosen drills beside the work of a home, and says whether the earlier ones came out right.

Off until somebody switches the schedule on in Dagster's UI: drills take devices and time.
"""

from dagster import (
    Config,
    DefaultScheduleStatus,
    Failure,
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
from pydantic import Field

from tracks_dagster.defs.site import Site
from tracks_dagster.track import names
from tracks_dagster.wings.lab.effects.drill_round import begin_round, score_rounds
from tracks_dagster.wings.lab.effects.rehearsals import BESIDE_WORK
from tracks_dagster.wiring import App

EVERY_WEEK = "30 4 * * 0"  # UTC, when few wait for devices
CHOSEN = ("preempt", "gpu_oom", "hang")


class DrillConfig(Config):
    """Which drills to play."""

    kinds: list[str] = Field(
        default=list(CHOSEN), description=f"Any of {', '.join(BESIDE_WORK)} ({', '.join(CHOSEN)})."
    )


def definitions(site: Site) -> list[JobDefinition | ScheduleDefinition]:
    """Return the job and the schedule of this module."""
    return [play_drills(site), drill_every_week(site)]


def play_drills(site: Site) -> JobDefinition:
    """Return the job that plays one round."""
    play_round = op(
        name=site.name("play_round"),
        description=(
            "Scores the drills of earlier rounds that are over, then declares a run for each kind."
        ),
    )(site.body(_play_round))

    @job(
        name=site.name(names.DRILL_JOB),
        tags=names.NO_RETRIES,
        executor_def=in_process_executor,
        description=(
            "Declares a small run for each chosen drill, which plays a fault beside the work of this "
            "home, and scores those of the rounds before. Red where one of those was not as it should "
            "be."
        ),
    )
    def play() -> None:
        play_round()

    return play


def _play_round(context: OpExecutionContext, config: DrillConfig, app: ResourceParam[App]) -> None:
    """Fail where an earlier drill did not come out right: the page of this run names it."""
    rows = score_rounds(app.tracks, app.ledger)
    for run_id in begin_round(app.tracks, app.shipped, app.new_uid, config.kinds):
        context.log.info(f"{run_id} is declared; `tracks explain {run_id}` says what comes of it")
    for row in rows:
        found = row.missing or f"right, detected in {row.detection_s} s"
        context.log.info(f"{row.run_id}: {row.drill}: {found}")
    wrong = [f"{row.run_id} ({row.drill}): {row.missing}" for row in rows if not row.is_right]
    if wrong:
        raise Failure(description=f"Not as it should be: {'; '.join(wrong)}")


def drill_every_week(site: Site) -> ScheduleDefinition:
    """Return the schedule."""
    return schedule(
        name=site.name(names.DRILL_WEEKLY),
        job_name=site.name(names.DRILL_JOB),
        cron_schedule=EVERY_WEEK,
        execution_timezone="UTC",
        default_status=DefaultScheduleStatus.STOPPED,
        description=(
            "Plays chosen drills on small runs, once a week. Off until somebody switches it on."
        ),
    )(_requested)


def _requested(context: ScheduleEvaluationContext) -> RunRequest:
    """Request one round; a repeated tick requests the same one."""
    return RunRequest(run_key=context.scheduled_execution_time.strftime("%Y%m%d"))
