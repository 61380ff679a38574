"""A deployment of a user's, with Dagster's own daemon, launcher and queue; ours are guests in it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from dagster import (
    AssetKey,
    DagsterEventType,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    RunsFilter,
)

from tests.integration.homes import COMMAND_S_MAX, POLL_S
from tracks_dagster.client import Run, Tracks
from tracks_dagster.track import names

pytestmark = [pytest.mark.full, pytest.mark.timeout(2 * COMMAND_S_MAX)]

KILLS = 10
SEED = "TRACKS_KILLS_SEED"  # of how many more events are recorded before each
SLOTS = 2
TRAININGS = 5
# Of a Dagster run: it is in the queue, a process is asked for, and that process has begun.
MOMENTS = (
    DagsterEventType.RUN_ENQUEUED,
    DagsterEventType.RUN_STARTING,
    DagsterEventType.RUN_START,
)
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
        done = subprocess.run(
            [sys.executable, "-m", "dagster", "job", "launch", "-f", "definitions.py", "-j", "own"],
            cwd=self.folder,
            env={**os.environ, **self.environment},
            timeout=COMMAND_S_MAX,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr

    def runs(self, job: str) -> list[DagsterRun]:
        """Return Dagster's runs of a job, newest first."""
        with DagsterInstance.from_config(str(self.folder)) as instance:
            return list(instance.get_runs(RunsFilter(job_name=job)))

    def shown(self, asset: str) -> Counter[tuple[str | None, str | None]]:
        """Return how often each partition of an asset was materialized, by its data version."""
        with DagsterInstance.from_config(str(self.folder)) as instance:
            found = instance.fetch_materializations(AssetKey(["ml", asset]), limit=9999).records
        made = [each.asset_materialization for each in found]
        return Counter((m.partition, (m.tags or {}).get(names.TAG_DATA_VERSION)) for m in made if m)

    def waits_s(self, run_id: str) -> tuple[float, float]:
        """Return after how many seconds a run left Dagster's queue, and had started, by its events."""
        with DagsterInstance.from_config(str(self.folder)) as instance:
            logged = instance.all_logs(run_id, of_type=set(MOMENTS))
        at = {each.dagster_event_type: each.timestamp for each in logged}
        asked, launched, started = (at[each] for each in MOMENTS)
        return launched - asked, started - asked


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
    # Its storage is made before two processes come to make it at once, which Dagster's SQLite cannot.
    with DagsterInstance.from_config(str(tmp_path)) as instance:
        instance.get_runs(limit=1)
        instance.all_instigator_state()
        instance.fetch_materializations(AssetKey("none"), limit=1)
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


def own_job(deployment: Deployment) -> tuple[float, float]:
    """Run the user's job to its end; return `waits_s` of it."""
    deployment.launch_own()
    newest = deployment.runs("own")[0].run_id
    wait_for(lambda: deployment.runs("own")[0].is_finished)
    [own] = (each for each in deployment.runs("own") if each.run_id == newest)
    assert own.status is DagsterRunStatus.SUCCESS
    return deployment.waits_s(newest)


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
        alone_s = own_job(deployment)
        runs = submitted(client, deployment, TRAININGS)
        wait_for(lambda: all(is_training(client, each) for each in runs))
        wait_for(lambda: all(each.is_finished for each in deployment.runs("ml_train_attempt")))
        beside_s = own_job(deployment)
        for beside, (queued_s, started_s) in ((0, alone_s), (TRAININGS, beside_s)):
            print(
                f"own job beside {beside} trainings: left the queue after {queued_s:.1f} s, "
                f"had started after {started_s:.1f} s"
            )
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


def progress(client: Tracks, deployment: Deployment, runs: Sequence[Run]) -> int:
    """Count what is recorded so far in the tracks of runs, and in Dagster of their Dagster runs."""
    records = sum(client.stored.run(each.run_id).head.seq + 1 for each in runs)
    with DagsterInstance.from_config(str(deployment.folder)) as instance:
        found = instance.get_runs(RunsFilter(job_name="ml_train_attempt"))
        return records + sum(len(instance.all_logs(each.run_id)) for each in found)


def test_a_daemon_that_is_killed_ten_times_loses_and_doubles_nothing(
    deployment: Deployment, client: Tracks
) -> None:
    seed = int(os.environ.get(SEED, random.SystemRandom().randrange(2**32)))
    print(f"{SEED}={seed}")
    drawn = random.Random(seed)
    # The first ones while it asks for runs and starts gangs, the others while they train.
    points = [drawn.randint(1, 12) for _ in range(KILLS)]
    runs = [
        client.submit(
            deployment.folder / "slow",
            intent="Take a while.",
            config={"steps": 2000},
            checkpoint_every_steps=20,
        )
        for _ in range(3)
    ]
    recorded = partial(progress, client, deployment, runs)
    for point in points:
        process, begun = deployment.daemon(), recorded()
        try:
            wait_for(lambda: recorded() >= begun + point)  # noqa: B023 - asked in this round alone
        finally:
            end(process, signal.SIGKILL)
    print(f"killed after {points} more events")
    (deployment.folder / "go").touch()
    with deployment.running():
        for each in runs:
            assert each.wait(COMMAND_S_MAX)["state"] == "succeeded"
        wait_for(lambda: all(each.is_finished for each in deployment.runs("ml_train_attempt")))
        attempts = [attempt for each in runs for attempt in client.stored.run(each.run_id).attempts]
        completed = [attempt for attempt in attempts if attempt.reason == "completed"]
        wait_for(lambda: deployment.shown("training_attempts").total() >= len(completed))
    for each in runs:
        assert_nothing_is_doubled(client, each)
    for asset in ("training_attempts", "receipts", "checkpoints"):
        shown = deployment.shown(asset)
        assert len(shown) == len({partition for partition, _ in shown}), (asset, shown)
        # Of a tick Dagster's daemon writes the events before the partitions by which the next one sees
        # that they are there: killed between the two, it writes them again.
        assert max(shown.values()) <= 1 + KILLS, (asset, shown)
    ends = Counter(each.status.value for each in deployment.runs("ml_train_attempt"))
    claims = sum(len(attempt.claims) for attempt in attempts)
    print(f"{len(attempts)} attempts, {claims} claims, Dagster runs by their end: {dict(ends)}")
