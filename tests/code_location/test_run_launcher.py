"""Runs as processes of their own: how one starts, ends, dies, and what is known of it meanwhile."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest
from dagster import (
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    RepositoryDefinition,
    in_process_executor,
    job,
    op,
    repository,
)
from dagster._core.definitions.reconstruct import ReconstructableRepository
from dagster._core.events import DagsterEvent, EngineEventData
from dagster._core.events.log import EventLogEntry
from dagster._core.launcher import LaunchRunContext
from dagster._core.launcher.base import WorkerStatus
from dagster._core.origin import JobPythonOrigin
from dagster._core.run_coordinator import QueuedRunCoordinator, SubmitRunContext
from dagster._core.workspace.context import BaseWorkspaceRequestContext
from dagster._daemon.monitoring.run_monitoring import monitor_started_run

from tracks_dagster.defs.resources.application import DagsterOrchestrator
from tracks_dagster.defs.resources.run_processes import find_run_process
from tracks_dagster.track import names
from tracks_dagster.track.errors import OrchestratorError
from tracks_dagster.wings.embedded.edge import run_launcher, run_monitoring
from tracks_dagster.wings.embedded.edge.run_launcher import ProcessRunLauncher
from tracks_dagster.wings.embedded.edge.run_monitoring import (
    UNLAUNCHED,
    give_up_lost_starts,
    why_lost,
)

ROOT = Path(__file__).resolve().parents[2]


@op
def sleep() -> None:
    """Sleep."""
    time.sleep(600)


@job(executor_def=in_process_executor)
def sleeps() -> None:
    """Sleep until it is ended."""
    sleep()


@repository
def repository_of_jobs() -> list[object]:
    """Name the jobs, for a process that is started with nothing but their names."""
    return [sleeps]


REPOSITORY = cast(RepositoryDefinition, repository_of_jobs)


@job
def nothing() -> None:
    """Do nothing."""


@pytest.fixture
def launcher(instance: DagsterInstance) -> Iterator[ProcessRunLauncher]:
    launcher = ProcessRunLauncher()
    launcher.register_instance(instance)
    yield launcher
    for child in launcher._children:
        child.wait()


@pytest.mark.parametrize(
    ("pid", "begun_s_ago", "found"),
    [
        (os.getpid(), 0.0, WorkerStatus.RUNNING),
        (2**22 + 1, 0.0, WorkerStatus.NOT_FOUND),  # above every pid that Linux gives
        (os.getpid(), 10 * 86_400.0, WorkerStatus.NOT_FOUND),  # another's, which got the pid later
    ],
    ids=["alive", "gone", "another's"],  # a pid in a test's name differs between workers
)
def test_a_run_lives_as_long_as_the_process_that_it_recorded(
    pid: int,
    begun_s_ago: float,
    found: WorkerStatus,
    instance: DagsterInstance,
    launcher: ProcessRunLauncher,
) -> None:
    run = instance.create_run_for_job(nothing)
    launched = DagsterEvent(event_type_value="PIPELINE_STARTING", job_name=run.job_name)
    instance.report_dagster_event(launched, run_id=run.run_id)
    message = f"Started process for run (pid: {pid})."
    event = DagsterEvent(
        event_type_value="ENGINE_EVENT",
        job_name=run.job_name,
        message=message,
        event_specific_data=EngineEventData.in_process(pid),
    )
    entry = EventLogEntry(
        error_info=None,
        level=logging.INFO,
        user_message=message,
        run_id=run.run_id,
        timestamp=time.time() - begun_s_ago,
        job_name=run.job_name,
        dagster_event=event,
    )
    instance.handle_new_event(entry)
    assert launcher.check_run_worker_health(run).status is found


def test_a_run_that_a_command_executes_itself_is_not_declared_dead(tmp_path: Path) -> None:
    """As `tracks run` makes snapshots beside `tracks up`: no launcher knows the run."""
    settings = (
        "telemetry: {enabled: false}\n"
        "run_launcher:\n  module: tracks_dagster.wings.embedded.edge.run_launcher\n"
        "  class: ProcessRunLauncher\n"
        "run_monitoring: {enabled: true}\n"
    )
    (tmp_path / "dagster.yaml").write_text(settings)
    with DagsterInstance.from_config(str(tmp_path)) as instance:
        run = instance.create_run_for_job(nothing)
        begun = DagsterEvent(event_type_value="PIPELINE_START", job_name=run.job_name)
        instance.report_dagster_event(begun, run_id=run.run_id)
        record = instance.get_run_record_by_id(run.run_id)
        assert record is not None
        workspace = cast(BaseWorkspaceRequestContext, None)
        monitor_started_run(instance, workspace, record, logging.getLogger("monitoring"))
        after = instance.get_run_by_id(run.run_id)
        assert after is not None
        assert after.status is DagsterRunStatus.STARTED


def launch(instance: DagsterInstance, launcher: ProcessRunLauncher, job_name: str) -> DagsterRun:
    """Launch a run of a job of this module; return it as it was launched."""
    code = ReconstructableRepository.for_file(__file__, "repository_of_jobs", str(ROOT))
    run = instance.create_run_for_job(
        REPOSITORY.get_job(job_name),
        job_code_origin=JobPythonOrigin(job_name, code.get_python_origin()),
        tags={names.TAG_PARTITION: "r-1/a01"},
    )
    instance.report_dagster_event(
        DagsterEvent(event_type_value="PIPELINE_STARTING", job_name=run.job_name), run_id=run.run_id
    )
    launcher.launch_run(LaunchRunContext(dagster_run=run, workspace=None))
    return run


def wait_for(instance: DagsterInstance, run: DagsterRun, *statuses: DagsterRunStatus) -> None:
    while (found := instance.get_run_by_id(run.run_id)) is None or found.status not in statuses:
        time.sleep(0.1)  # the suite's own time-out ends it


def test_a_run_is_a_process_whose_death_is_recorded_at_once_and_which_a_person_can_cancel(
    instance: DagsterInstance, launcher: ProcessRunLauncher
) -> None:
    killed, cancelled = (launch(instance, launcher, "sleeps") for _ in range(2))
    for run in (killed, cancelled):
        wait_for(instance, run, DagsterRunStatus.STARTED)
    process = find_run_process(instance, killed)
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    assert launcher.terminate(cancelled.run_id)
    wait_for(instance, killed, DagsterRunStatus.FAILURE)  # there is no monitoring here
    wait_for(instance, cancelled, DagsterRunStatus.CANCELED)
    logs = [str(entry.dagster_event) for entry in instance.all_logs(killed.run_id)]
    assert any("was terminated by signal 9 (SIGKILL)" in line for line in logs)
    assert not launcher.terminate(killed.run_id)


def test_a_launch_that_fails_says_why_in_the_tags_of_its_run(
    instance: DagsterInstance, launcher: ProcessRunLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(run_launcher.subprocess, "Popen", refuse)
    with pytest.raises(OrchestratorError):
        launch(instance, launcher, "sleeps")
    [run] = instance.get_runs()
    instance.report_run_failed(run)  # as Dagster does
    found = DagsterOrchestrator(instance).find(run.run_id)
    assert found is not None
    assert found.is_failed
    assert "could not be started: [Errno 12] Cannot allocate memory" in found.problem
    assert found.asked_at is not None
    assert found.ended_at is not None
    assert 0 <= (found.ended_at - found.asked_at).total_seconds() < 3600  # both in UTC


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[DagsterInstance]:
    """An instance with our launcher and our queue."""
    (tmp_path / "dagster.yaml").write_text(
        "telemetry: {enabled: false}\n"
        "run_launcher:\n  module: tracks_dagster.wings.embedded.edge.run_launcher\n"
        "  class: ProcessRunLauncher\n"
        "run_coordinator:\n  module: tracks_dagster.defs.resources.run_coordinator\n"
        "  class: TracksRunCoordinator\n"
        "run_monitoring: {enabled: true}\n"
    )
    with DagsterInstance.from_config(str(tmp_path)) as instance:
        yield instance


def begins(instance: DagsterInstance, **tags: str) -> DagsterRun:
    """A run that Dagster has taken from its queue and asked the launcher for."""
    run = instance.create_run_for_job(nothing, tags=tags)
    event = DagsterEvent(event_type_value="PIPELINE_STARTING", job_name=run.job_name)
    instance.report_dagster_event(event, run_id=run.run_id)
    return run


@pytest.mark.parametrize(
    ("pid", "silent", "found"),
    [
        (os.getpid(), 5 * UNLAUNCHED, None),  # slow, on a machine that is overloaded: waited for
        (2**22 + 1, timedelta(seconds=1), None),  # it may have begun this moment
        (2**22 + 1, timedelta(minutes=1), "its process ended before it began"),
        (None, timedelta(minutes=1), None),  # its launcher is at it
        (None, UNLAUNCHED, "no process was started for it"),
    ],
    ids=["slow", "just gone", "gone", "not launched yet", "never launched"],
)
def test_a_run_that_begins_is_waited_for_as_long_as_its_process_lives(
    pid: int | None, silent: timedelta, found: str | None, ours: DagsterInstance
) -> None:
    run = begins(ours)
    if pid is not None:
        words, data = f"{run_launcher.LAUNCHED} (pid: {pid}).", EngineEventData.in_process(pid)
        ours.report_engine_event(words, run, data)
    record = ours.get_run_record_by_id(run.run_id)
    assert record is not None
    assert why_lost(ours, record, datetime.now(UTC) + silent) == found


def test_a_run_whose_process_died_before_it_began_is_given_up_with_why_and_others_are_not(
    ours: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, slow = begins(ours, **{names.TAG_PARTITION: "r-1/a01"}), begins(ours)
    for run, pid in ((lost, 2**22 + 1), (slow, os.getpid())):
        words, data = f"{run_launcher.LAUNCHED} (pid: {pid}).", EngineEventData.in_process(pid)
        ours.report_engine_event(words, run, data)
    monkeypatch.setattr(run_monitoring, "GONE", timedelta(0))
    list(give_up_lost_starts(ours, logging.getLogger("monitoring")))
    statuses = {run.run_id: run.status for run in ours.get_runs()}
    assert statuses[lost.run_id] is DagsterRunStatus.FAILURE
    assert statuses[slow.run_id] is DagsterRunStatus.STARTING
    found = DagsterOrchestrator(ours).find(lost.run_id)
    assert found is not None
    assert found.problem == "its process ended before it began"


def test_a_run_that_was_cancelled_while_dagster_took_it_from_its_queue_is_not_started(
    ours: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ours.create_run_for_job(nothing)
    ours.report_run_canceling(run, message="Canceling run from the queue.")
    ours.report_run_canceled(run)
    event = DagsterEvent(event_type_value="PIPELINE_STARTING", job_name=run.job_name)
    ours.report_dagster_event(event, run_id=run.run_id)
    monkeypatch.setattr(ProcessRunLauncher, "_start", lambda *_: pytest.fail("it was started"))
    ours.run_launcher.launch_run(LaunchRunContext(dagster_run=run, workspace=None))
    [now] = ours.get_runs()
    assert now.status is DagsterRunStatus.CANCELED


def test_a_run_that_is_cancelled_before_its_worker_comes_up_is_cancelled_at_once(
    ours: DagsterInstance,
) -> None:
    run = begins(ours)
    assert ours.run_launcher.terminate(run.run_id)
    [now] = ours.get_runs()
    assert now.status is DagsterRunStatus.CANCELED


def test_a_run_comes_into_the_queue_without_what_became_of_the_one_that_it_repeats(
    ours: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = dict.fromkeys(names.RESULT_TAGS, "failure")
    run = ours.create_run_for_job(nothing, tags={**verdict, names.TAG_LEASE: "9"})
    context = SubmitRunContext(run, cast(BaseWorkspaceRequestContext, None))
    monkeypatch.setattr(
        QueuedRunCoordinator, "submit_run", lambda *_: ours.get_run_by_id(run.run_id)
    )
    queued = ours.run_coordinator.submit_run(context)
    assert {name: queued.tags[name] for name in names.RESULT_TAGS} == dict.fromkeys(verdict, "")
    assert queued.tags[names.TAG_LEASE] == "9"
    found = DagsterOrchestrator(ours).find(run.run_id)
    assert found is not None
    assert not found.had_no_devices
