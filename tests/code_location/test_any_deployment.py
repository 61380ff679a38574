"""In a deployment of a user's, with Dagster's own launcher: what its programs forget is not lost."""

from __future__ import annotations

import logging
import os
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import cast

import pytest
from dagster import (
    DagsterEvent,
    DagsterInstance,
    DagsterRunStatus,
    SensorEvaluationContext,
    job,
)
from dagster._core.events import EngineEventData
from dagster._core.events.log import EventLogEntry
from dagster._core.launcher.default_run_launcher import DefaultRunLauncher
from dagster._core.remote_origin import (
    RegisteredCodeLocationOrigin,
    RemoteInstigatorOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    InstigatorType,
    SensorInstigatorData,
)

from tracks_dagster.defs.resources.run_processes import GONE, UNLAUNCHED, end_lost_runs
from tracks_dagster.defs.sensors.watch_attempts import TICKED_S_MAX, find_namesake

NO_PID = 2**22 + 1  # above every pid that Linux gives


@job
def ml_train_attempt() -> None:
    """Do nothing."""


@job
def of_a_user() -> None:
    """Do nothing."""


def launched(instance: DagsterInstance, made: object, pid: int | None) -> str:
    """Return a run that Dagster's launcher started, with the process that it recorded."""
    run = instance.create_run_for_job(made)  # type: ignore[arg-type]
    name = run.job_name
    instance.report_dagster_event(
        DagsterEvent(event_type_value="PIPELINE_STARTING", job_name=name), run_id=run.run_id
    )
    if pid is not None:
        message = f"Started process for run (pid: {pid})."
        event = DagsterEvent(
            event_type_value="ENGINE_EVENT",
            job_name=name,
            message=message,
            event_specific_data=EngineEventData.in_process(pid),
        )
        entry = EventLogEntry(
            error_info=None,
            level=logging.INFO,
            user_message=message,
            run_id=run.run_id,
            timestamp=time.time(),
            job_name=name,
            dagster_event=event,
        )
        instance.handle_new_event(entry)
    return run.run_id


def ended(instance: DagsterInstance, run_id: str, later: timedelta) -> bool:
    """Whether the run is ended by a look `later` than now."""
    list(end_lost_runs(instance, ["ml_train_attempt"], datetime.now(UTC) + later))
    run = instance.get_run_by_id(run_id)
    assert run is not None
    return run.status is DagsterRunStatus.FAILURE


def test_a_run_whose_process_died_with_its_code_server_holds_no_slot_for_ever(
    instance: DagsterInstance,
) -> None:
    assert type(instance.run_launcher) is DefaultRunLauncher
    died = launched(instance, ml_train_attempt, NO_PID)
    assert not ended(instance, died, GONE / 2)
    lives = launched(instance, ml_train_attempt, os.getpid())
    unseen = launched(instance, ml_train_attempt, None)
    users = launched(instance, of_a_user, NO_PID)
    assert ended(instance, died, 2 * GONE)
    assert [ended(instance, each, 2 * GONE) for each in (lives, unseen)] == [False, False]
    assert ended(instance, unseen, 2 * UNLAUNCHED)
    assert [ended(instance, each, 2 * UNLAUNCHED) for each in (lives, users)] == [False, False]


def ticking(
    location: str, sensor: str, ticked_s_ago: float, *, is_on: bool = True
) -> InstigatorState:
    place = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin(location), "__repository__")
    return InstigatorState(
        RemoteInstigatorOrigin(place, sensor),
        InstigatorType.SENSOR,
        InstigatorStatus.RUNNING if is_on else InstigatorStatus.STOPPED,
        SensorInstigatorData(last_tick_timestamp=time.time() - ticked_s_ago),
    )


@pytest.mark.parametrize(
    ("name", "ticked_s_ago", "is_on", "is_named"),
    [
        (("theirs", "ml_watch_attempts"), 5.0, True, True),
        (("theirs", "ml_watch_attempts"), 5.0, False, False),
        (("theirs", "ml_watch_attempts"), 2 * TICKED_S_MAX, True, False),  # of another day
        (("theirs", "watch_attempts"), 5.0, True, False),
        (("ours", "ml_watch_attempts"), 5.0, True, False),
    ],
)
def test_two_code_locations_with_one_prefix_are_both_named_by_the_watcher(
    name: tuple[str, str], ticked_s_ago: float, is_on: bool, is_named: bool
) -> None:
    other = ticking(*name, ticked_s_ago, is_on=is_on)
    context = cast(
        SensorEvaluationContext,
        SimpleNamespace(
            code_location_origin=RegisteredCodeLocationOrigin("ours"),
            sensor_name="ml_watch_attempts",
        ),
    )
    words = find_namesake(context, [other])
    assert (words is not None) is is_named
    if words is not None:
        assert "The code locations ours, theirs have the sensor ml_watch_attempts" in words
        assert "another prefix" in words
