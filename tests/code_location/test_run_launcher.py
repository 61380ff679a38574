"""What a launch met, and whether a worker lives, as its code server tells; the server is played."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, DefaultRunLauncher, job
from dagster._core.errors import (
    DagsterLaunchFailedError,
    DagsterUserCodeUnreachableError,
    DagsterUserCodeUnreachableTimeoutError,
)
from dagster._core.events import DagsterEvent, EngineEventData
from dagster._core.events.log import EventLogEntry
from dagster._core.launcher import LaunchRunContext
from dagster._core.launcher.base import WorkerStatus
from dagster._core.workspace.context import BaseWorkspaceRequestContext
from dagster._daemon.monitoring.run_monitoring import monitor_started_run
from dagster._grpc.types import GetCurrentRunsResult
from dagster._serdes import serialize_value

from resources import run_launcher
from resources.application import DagsterOrchestrator
from resources.run_launcher import TRIES, CheckedRunLauncher


class Client:
    """A code server's client that fails `failures` times with `error`, then knows `runs`."""

    def __init__(self, *runs: str, error: Exception | None = None, failures: int = 0) -> None:
        self.runs, self.error, self.failures, self.calls = runs, error, failures, 0

    def get_current_runs(self) -> str:
        self.calls += 1
        if self.error is not None and self.calls <= self.failures:
            raise self.error
        return serialize_value(
            GetCurrentRunsResult(current_runs=list(self.runs), serializable_error_info=None)
        )


@job
def nothing() -> None:
    """Do nothing."""


Check = Callable[[Client | None], WorkerStatus]


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Check:
    def found(client: Client | None) -> WorkerStatus:
        launcher = CheckedRunLauncher()
        monkeypatch.setattr(launcher, "_get_grpc_client_for_termination", lambda _: client)
        monkeypatch.setattr(run_launcher.time, "sleep", lambda _: None)
        return launcher.check_run_worker_health(DagsterRun(job_name="a_job", run_id="r")).status

    return found


def test_a_run_that_its_code_server_knows_runs(check: Check) -> None:
    assert check(Client("other", "r")) is WorkerStatus.RUNNING


def test_a_run_that_its_code_server_does_not_know_is_gone(check: Check) -> None:
    assert check(Client("other")) is WorkerStatus.NOT_FOUND


def test_a_run_that_has_ended_has_no_server_to_ask(check: Check) -> None:
    assert check(None) is WorkerStatus.NOT_FOUND


def test_a_code_server_that_once_refuses_a_connection_is_asked_again(check: Check) -> None:
    client = Client("r", error=DagsterUserCodeUnreachableError("refused"), failures=TRIES - 1)
    assert check(client) is WorkerStatus.RUNNING


def test_a_code_server_that_always_refuses_is_gone(check: Check) -> None:
    client = Client("r", error=DagsterUserCodeUnreachableError("refused"), failures=TRIES)
    assert check(client) is WorkerStatus.NOT_FOUND
    assert client.calls == TRIES


def test_a_code_server_that_does_not_answer_in_time_is_busy(check: Check) -> None:
    client = Client("r", error=DagsterUserCodeUnreachableTimeoutError("late"), failures=1)
    assert check(client) is WorkerStatus.RUNNING
    assert client.calls == 1


@pytest.mark.parametrize(
    ("pid", "begun_s_ago", "found"),
    [
        (os.getpid(), 0.0, WorkerStatus.RUNNING),
        (2**22 + 1, 0.0, WorkerStatus.NOT_FOUND),  # above every pid that Linux gives
        (os.getpid(), 10 * 86_400.0, WorkerStatus.NOT_FOUND),  # another's, which got the pid later
    ],
    ids=["alive", "gone", "another's"],  # a pid in a test's name differs between workers
)
def test_a_process_that_ended_while_the_storage_was_away_is_gone_whatever_its_server_says(
    pid: int,
    begun_s_ago: float,
    found: WorkerStatus,
    instance: DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = instance.create_run_for_job(nothing)
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
    launcher = CheckedRunLauncher()
    launcher.register_instance(instance)
    client = Client(run.run_id)
    monkeypatch.setattr(launcher, "_get_grpc_client_for_termination", lambda _: client)
    assert launcher.check_run_worker_health(run).status is found


def test_a_run_that_a_command_executes_itself_is_not_declared_dead(tmp_path: Path) -> None:
    """As `tracks run` makes snapshots beside `tracks up`: no code server knows the run."""
    settings = (
        "telemetry: {enabled: false}\n"
        "run_launcher: {module: resources.run_launcher, class: CheckedRunLauncher}\n"
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


def launch(instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch, error: Exception) -> str:
    """Launch a run that meets `error`; return its id."""

    def meet(self: DefaultRunLauncher, context: LaunchRunContext) -> None:
        raise error

    monkeypatch.setattr(DefaultRunLauncher, "launch_run", meet)
    monkeypatch.setenv("DAGSTER_GRPC_TIMEOUT_SECONDS", "300")
    run = instance.create_run_for_job(nothing, tags={"dagster/partition": "r-1/a01"})
    launcher = CheckedRunLauncher()
    launcher.register_instance(instance)
    launcher.launch_run(LaunchRunContext(dagster_run=run, workspace=None))
    return run.run_id


def test_a_launch_that_is_not_answered_in_time_is_late_and_not_failed(
    instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = launch(instance, monkeypatch, DagsterUserCodeUnreachableTimeoutError("late"))
    run = instance.get_run_by_id(run_id)
    assert run is not None
    assert run.status is DagsterRunStatus.NOT_STARTED  # as it was: its process may be on its way
    [found] = DagsterOrchestrator(instance).runs_of_attempt("r-1/a01")
    assert not found.is_finished
    assert found.asked_at is not None
    assert found.problem.startswith("the code server did not answer in 300 s; see daemon.log in /")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (DagsterUserCodeUnreachableError("refused"), "the code server could not be reached; see"),
        (DagsterLaunchFailedError("its subprocess ended with 1"), "its subprocess ended with 1"),
    ],
    ids=["unreachable", "refused"],
)
def test_a_launch_that_is_refused_fails_and_its_tags_say_why(
    instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
) -> None:
    with pytest.raises(type(error)):
        launch(instance, monkeypatch, error)
    [run] = instance.get_runs()
    instance.report_run_failed(run)  # as Dagster's queue does
    [found] = DagsterOrchestrator(instance).runs_of_attempt("r-1/a01")
    assert found.is_failed
    assert found.problem.startswith(words)
    assert found.asked_at is not None
    assert found.ended_at is not None
    assert 0 <= (found.ended_at - found.asked_at).total_seconds() < 3600  # both in UTC
