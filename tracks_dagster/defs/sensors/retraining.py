"""The schedules of projects: each has its own name, switch and description in Dagster.

A tick reads the project's file again and asks for one Dagster run of the launchpad's job, so that a
run of a schedule is declared as any other. Nothing is read from the network to define them.
"""

import platform
from dataclasses import replace
from datetime import UTC

from dagster import (
    DefaultScheduleStatus,
    DefaultSensorStatus,
    ResourceParam,
    RunRequest,
    ScheduleDefinition,
    ScheduleEvaluationContext,
    SensorDefinition,
    SensorEvaluationContext,
    SkipReason,
    schedule,
    sensor,
)

from tracks_dagster.attempts.effects.retraining import look_at_snapshot, look_at_tick, take_run
from tracks_dagster.clean_errors import clean_text
from tracks_dagster.defs.assets.declarations import filling_in
from tracks_dagster.defs.site import Site
from tracks_dagster.projects.effects.registered import Registered
from tracks_dagster.projects.project import Project
from tracks_dagster.projects.schedule import Retrain, Schedule
from tracks_dagster.retry.stages import FULL
from tracks_dagster.track import names
from tracks_dagster.wiring import App

LOOK_EVERY_S = 30
# Between the looks of two projects at least: a tick costs Dagster's daemon and its code server 40 ms of
# processor, whatever it finds. With 200 projects each looks every 800 s, for 1 % of a core.
LOOK_APART_S = 4
UNREADABLE = Schedule(cron="0 * * * *")  # of a project that cannot be read: its tick says why
_TICK = "Each tick declares a run, or says why it is skipped. "
_SHIPPED = " Off until somebody who pays for the machines switches it on."


def retraining_schedules(site: Site) -> list[ScheduleDefinition]:
    """Return a schedule for each project with a cron, and for each that cannot be read."""
    return [_schedule(site, each) for each in site.projects if _schedule_of(each).cron is not None]


def retraining_sensors(site: Site) -> list[SensorDefinition]:
    """Return a sensor for each project that asks for new snapshots."""
    asking = [each for each in site.projects if _schedule_of(each).on_new_snapshot]
    every_s = max(LOOK_EVERY_S, LOOK_APART_S * len(asking))
    return [_sensor(site, each, every_s) for each in asking]


def _schedule_of(each: Registered) -> Schedule:
    if each.project is None:
        return UNREADABLE
    return each.project.schedule or Schedule()


def _schedule(site: Site, each: Registered) -> ScheduleDefinition:
    # On also where it cannot be read: the daemon loads again every minute, and a schedule switched off
    # by itself would be missed by nobody.
    asked, is_on = _schedule_of(each), site.is_on and not each.is_shipped

    @schedule(
        name=site.name(names.RETRAIN).format(names.dagster_name(each.name)),
        job_name=site.name(names.DECLARE_TRAINING_RUN_JOB),
        cron_schedule=asked.cron or "",
        execution_timezone=asked.timezone,
        default_status=DefaultScheduleStatus.RUNNING if is_on else DefaultScheduleStatus.STOPPED,
        description=clean_text(each.problem)
        if each.problem
        else _description(each, replace(asked, on_new_snapshot=False)),
    )
    @site.body
    def retrain(
        context: ScheduleEvaluationContext, app: ResourceParam[App]
    ) -> RunRequest | SkipReason:
        project = _read(site, app, each.name)
        if each.project is None:
            return SkipReason(
                f"skipped: {each.name} can be read again; a reload brings its own cron"
            )
        at = context.scheduled_execution_time.astimezone(UTC)
        answer = look_at_tick(app.tracks, app.ledger, project, at)
        return _requested(app, each.name, answer)

    return retrain


def _sensor(site: Site, each: Registered, every_s: int) -> SensorDefinition:
    is_on = site.is_on and not each.is_shipped

    @sensor(
        name=site.name(names.RETRAIN_ON_SNAPSHOT).format(names.dagster_name(each.name)),
        job_name=site.name(names.DECLARE_TRAINING_RUN_JOB),
        minimum_interval_seconds=site.every_s(every_s),
        default_status=DefaultSensorStatus.RUNNING if is_on else DefaultSensorStatus.STOPPED,
        description=_description(each, Schedule(on_new_snapshot=True)),
    )
    @site.body
    def retrain(
        context: SensorEvaluationContext, app: ResourceParam[App]
    ) -> RunRequest | SkipReason:
        project = _read(site, app, each.name)
        answer, seen = look_at_snapshot(app.tracks, app.ledger, project, context.cursor)
        context.update_cursor(seen)
        return _requested(app, each.name, answer)

    return retrain


def _description(each: Registered, asked: Schedule) -> str:
    dataset = None if each.project is None else each.project.dataset
    data = "" if dataset is None else f"Dataset: {dataset}. "
    switch = _SHIPPED if each.is_shipped else ""
    of = each.folder if each.version is None else f"the newest stored version, now {each.version},"
    code = f"The code is that of {of} at the tick."
    return f"Retrains {each.name} {asked.words}. {_TICK}{data}{code}{switch}"


def _read(site: Site, app: App, name: str) -> Project:
    return site.find_project(app, name).read()


def _requested(app: App, name: str, answer: Retrain | str) -> RunRequest | SkipReason:
    """Ask for the run; its key is the training run's id, so that a repeated tick asks for nothing.

    With the day: Dagster asks for a key once for ever, and a run that was refused (a gate that was
    closed, a cap) has to be asked for again when it is not.
    """
    if isinstance(answer, str):
        return SkipReason(app.redact(answer))
    home, where = app.settings.database_id, platform.node()
    taken = take_run(app.tracks, name, answer.run_id, home=home, where=where)
    if taken is not None:
        return SkipReason(app.redact(taken))
    given = {
        "run_id": answer.run_id,
        "intent": answer.intent,
        "owner": names.SCHEDULE_OWNER,
        "stage": FULL,
        **({} if answer.snapshot_id is None else {"snapshot_id": answer.snapshot_id}),
    }
    config = filling_in(name, given)
    return RunRequest(
        run_key=f"{answer.run_id}/{app.now():%Y-%m-%d}",
        run_config={"ops": {app.settings.prefix.op(names.TRAINING_RUNS): {"config": config}}},
        tags={names.TAG_TRAINING_RUN: answer.run_id},
    )
