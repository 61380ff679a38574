"""A deployment of a user's, with Dagster's own daemon, launcher and queue; ours are guests in it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, RunsFilter

from tests.integration.homes import COMMAND_S_MAX, POLL_S
from tracks_dagster.client import Run, Tracks
from tracks_dagster.track import names

pytestmark = [pytest.mark.full, pytest.mark.timeout(2 * COMMAND_S_MAX)]

KILLS = 10
SLOTS = 2
TRAININGS = 5
TRAINER = """\
import time
from pathlib import Path

import torch
from tracks_dagster.training import attempt

go = Path({go!r})
with attempt.join() as a:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    a.register(model=model, optimizer=optimizer)
    steps = int(a.config["steps"])
    for step, _ in a.steps(range(steps), until=steps):
        a.report(step, loss=1.0 / step)
        if not go.exists():
            time.sleep(0.5)
"""
PROJECT = """\
name: slow
entry: train.py
config: {steps: 5000}
checkpoint: {every_steps: 1000}
"""
DEFINITIONS = """\
import dagster as dg
from tracks_dagster.factory import build_defs, merge


@dg.op
def work(): ...


@dg.job
def own(): work()


defs = merge(dg.Definitions(jobs=[own]), build_defs([{project!r}], prefix="ml"))
"""
INSTANCE = f"""\
telemetry: {{enabled: false}}
nux: {{enabled: false}}
code_servers: {{local_startup_timeout: 600}}
run_coordinator:
  module: dagster
  class: QueuedRunCoordinator
  config: {{max_concurrent_runs: {SLOTS}, dequeue_interval_seconds: 1}}
"""


@dataclass(frozen=True)
class Deployment:
    """A user's folder with definitions.py and dagster.yaml, and the home of our records."""

    folder: Path
    environment: dict[str, str]

    def daemon(self) -> subprocess.Popen[bytes]:
        """Start Dagster's own daemon, which starts the code server."""
        with (self.folder / "daemon.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "dagster._daemon", "run", "-f", "definitions.py"],
                cwd=self.folder,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @contextmanager
    def running(self) -> Iterator[None]:
        """Hold a daemon."""
        process = self.daemon()
        try:
            yield
        finally:
            end(process, signal.SIGTERM)

    def launch_own(self) -> None:
        """Put a run of the user's job into Dagster's queue."""
        subprocess.run(
            [sys.executable, "-m", "dagster", "job", "launch", "-f", "definitions.py", "-j", "own"],
            cwd=self.folder,
            env={**os.environ, **self.environment},
            timeout=COMMAND_S_MAX,
            capture_output=True,
            check=True,
        )

    def runs(self, job: str) -> list[DagsterRun]:
        """Return Dagster's runs of a job, newest first."""
        with DagsterInstance.from_config(str(self.folder)) as instance:
            return list(instance.get_runs(RunsFilter(job_name=job)))


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    project = tmp_path / "slow"
    project.mkdir()
    (project / "train.py").write_text(TRAINER.format(go=str(tmp_path / "go")))
    (project / "tracks.yaml").write_text(PROJECT)
    (tmp_path / "definitions.py").write_text(DEFINITIONS.format(project=str(project)))
    (tmp_path / "dagster.yaml").write_text(INSTANCE)
    environment = {
        "DAGSTER_HOME": str(tmp_path),
        "DAGSTER_GRPC_TIMEOUT_SECONDS": "300",
        "TRACKS_HOME": str(tmp_path / "home"),
        "TRACKS_PREFIX": "ml",
        "TRACKS_DAGSTER": "",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return Deployment(tmp_path, environment)


@pytest.fixture
def client(deployment: Deployment) -> Tracks:
    return Tracks(home=deployment.folder / "home", by="tests")


def end(process: subprocess.Popen[bytes], number: int) -> None:
    process.send_signal(number)
    process.wait(COMMAND_S_MAX)


def wait_for(happened: Callable[[], bool]) -> float:
    """Return after how many seconds it has happened; bounded."""
    began = time.monotonic()
    while not happened():
        assert time.monotonic() < began + COMMAND_S_MAX, "it did not happen"
        time.sleep(POLL_S)
    return time.monotonic() - began


def submitted(client: Tracks, deployment: Deployment, count: int) -> list[Run]:
    folder = deployment.folder / "slow"
    return [client.submit(folder, intent="Take a while.") for _ in range(count)]


def is_training(client: Tracks, run: Run) -> bool:
    attempt = client.stored.run(run.run_id).open_attempt
    return attempt is not None and attempt.restored is not None


def assert_nothing_is_doubled(client: Tracks, run: Run) -> None:
    """Of each attempt one launch wrote a journal, and the run came to its end."""
    state = client.stored.run(run.run_id)
    assert state.finished is not None
    assert [each.reason for each in state.attempts][-1] == "completed"
    for each in state.attempts:
        begin = f"runs/{run.run_id}/attempts/{each.attempt_id}/"
        keys = client.app.store.list(begin)
        launches = {key.removeprefix(begin).split("/")[0] for key in keys if "/journal/" in key}
        assert len(launches) <= 1


def test_five_trainings_leave_a_deployment_with_two_slots_room_for_its_own_jobs(
    deployment: Deployment, client: Tracks
) -> None:
    with deployment.running():
        runs = submitted(client, deployment, TRAININGS)
        wait_for(lambda: all(is_training(client, each) for each in runs))
        wait_for(lambda: all(each.is_finished for each in deployment.runs("ml_train_attempt")))
        deployment.launch_own()

        def own_is(*statuses: DagsterRunStatus) -> bool:
            [own] = deployment.runs("own")
            return own.status in statuses

        queued_s = wait_for(lambda: not own_is(DagsterRunStatus.QUEUED))
        ran_s = wait_for(lambda: own_is(DagsterRunStatus.SUCCESS))
        print(f"{TRAININGS} trainings: own job queued {queued_s:.1f} s, then done in {ran_s:.1f} s")
        assert all(is_training(client, each) for each in runs)
        assert len(deployment.runs("ml_train_attempt")) == TRAININGS
        (deployment.folder / "go").touch()
        for each in runs:
            assert each.wait(COMMAND_S_MAX)["state"] == "succeeded"
    for each in runs:
        assert_nothing_is_doubled(client, each)
        assert len(client.stored.run(each.run_id).attempts) == 1
    tagged = {each.tags.get(names.TAG_ENDING) for each in deployment.runs("ml_train_attempt")}
    assert tagged == {"as_meant"}


def test_a_daemon_that_is_killed_ten_times_loses_and_doubles_nothing(
    deployment: Deployment, client: Tracks
) -> None:
    runs = submitted(client, deployment, 3)
    for number in range(KILLS):
        process = deployment.daemon()
        # At other moments each time: while it loads, asks for runs, starts gangs, and while they train.
        time.sleep(5.0 + 3.0 * number)
        end(process, signal.SIGKILL)
    (deployment.folder / "go").touch()
    with deployment.running():
        for each in runs:
            assert each.wait(COMMAND_S_MAX)["state"] == "succeeded"
        wait_for(lambda: all(each.is_finished for each in deployment.runs("ml_train_attempt")))
    for each in runs:
        assert_nothing_is_doubled(client, each)
    ends = Counter(each.status.value for each in deployment.runs("ml_train_attempt"))
    attempts = [attempt for each in runs for attempt in client.stored.run(each.run_id).attempts]
    claims = sum(len(attempt.claims) for attempt in attempts)
    print(f"{len(attempts)} attempts, {claims} claims, Dagster runs by their end: {dict(ends)}")
