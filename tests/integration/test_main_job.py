"""The main job as `./run` starts it: the whole story on an empty home, in minutes, leaving nothing."""

from __future__ import annotations

import csv
import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.integration.homes import COMMAND_S_MAX, POLL_S, Home, embedded, losses
from tracks_dagster.track.errors import TracksError
from tracks_dagster.track.names import RUNS

HAS_MLFLOW = importlib.util.find_spec("mlflow") is not None
STEPS = 120

pytestmark = [pytest.mark.full, pytest.mark.timeout(2 * COMMAND_S_MAX)]


def processes_of(home: Path) -> list[str]:
    """Return the command lines of all processes that work on `home`."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environment = (entry / "environ").read_bytes()
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # it has just gone, or is not ours
            continue
        if f"TRACKS_HOME={home}".encode() in environment:
            found.append(command)
    return found


def attempts_of(home: Home) -> tuple[str, int]:
    """Return the one run of the home, and how many attempts it has; "" while there is none."""
    try:
        (run_id,) = home.app.store.folders(RUNS)
        return run_id, len(home.app.tracks.run(run_id).attempts)
    except (TracksError, ValueError):
        return "", 0


def export_to_mlflow(home: Home, run_id: str, uri: str) -> None:
    if HAS_MLFLOW:
        done = home.call("curves", run_id, "--mlflow", uri)
        assert done.returncode == 0, done.stderr


def rows(home: Home, run_id: str) -> list[tuple[int, int, str]]:
    """Return step, attempt and loss of each row of the run's CSV."""
    done = home.call("curves", run_id, "loss", "--csv")
    found = csv.DictReader(done.stdout.splitlines())
    return [(int(row["step"]), int(row["attempt"]), row["loss"]) for row in found]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, str, str, str]:
    """The main job, exported to MLflow as each of its three attempts trains, and when it is over.

    Its home, its run, what it printed, and MLflow's address.
    """
    folder = tmp_path_factory.mktemp("main")
    home, uri = embedded(folder), f"sqlite:///{folder}/mlflow.db"
    exported, end = 0, time.monotonic() + COMMAND_S_MAX
    with (
        (folder / "out").open("wb") as out,
        subprocess.Popen(
            [sys.executable, "-m", "tracks_dagster.main_job"],
            env={**os.environ, **home.variables},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        ) as job,
    ):
        while job.poll() is None:
            assert time.monotonic() < end, (folder / "out").read_text()
            run_id, count = attempts_of(home)
            if count > exported:
                exported = count
                export_to_mlflow(home, run_id, uri)
            time.sleep(POLL_S)
    printed = (folder / "out").read_text()
    assert job.returncode == 0, printed
    assert exported == 3, printed
    export_to_mlflow(home, run_id, uri)
    return home, run_id, printed, uri


def test_the_main_job_tells_its_story_and_leaves_nothing_running(
    played: tuple[Home, str, str, str],
) -> None:
    home, run_id, printed, _ = played
    for expected in (
        "on a CPU build that is how it is played",
        "preempted",
        "gpu_oom",
        "same losses over 7 steps",
        "retried by retry_oom",
        "promoted to 'candidate'",
    ):
        assert expected in printed
    report = Path(printed.split("Report: ")[1].splitlines()[0])
    assert report.stem == run_id
    assert [step for step, _ in losses(home, run_id)] == list(range(1, STEPS + 1))
    assert "<svg" in report.read_text()
    assert processes_of(home.settings.home) == []
    assert home.call("fsck").returncode == 0


def test_its_curve_is_that_of_an_undisturbed_run_as_long_as_the_config_is_the_same(
    played: tuple[Home, str, str, str],
) -> None:
    home, run_id, *_ = played
    size = ("--steps", str(STEPS), "--checkpoint-every", "20")
    with home.daemon():
        done = home.call("run", "--run-id", "calm", "--intent", "Be left alone.", *size)
    assert done.returncode == 0, done.stderr
    calm = dict(losses(home, "calm"))
    # Attempt 3 has half the micro-batch: the same sums, in another order.
    same = [(step, loss) for step, attempt, loss in rows(home, run_id) if attempt < 3]
    assert [step for step, _ in same] == list(range(1, 81))
    assert same == [(step, calm[step]) for step, _ in same]


@pytest.mark.skipif(not HAS_MLFLOW, reason="mlflow is not installed: ./run test --full installs it")
def test_exports_as_it_trained_left_mlflow_each_step_once(
    played: tuple[Home, str, str, str],
) -> None:
    home, run_id, _, uri = played
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    (experiment,) = (each for each in client.search_experiments() if each.name != "Default")
    (found,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(found.info.run_id, "loss")
    shown = sorted((each.step, each.value) for each in history)
    assert shown == [(step, float(loss)) for step, loss in losses(home, run_id)]


def test_tensorboards_own_reader_finds_every_step(
    played: tuple[Home, str, str, str], tmp_path: Path
) -> None:
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="TensorBoard is not installed: ./run test --full installs it",
    )
    home, run_id, *_ = played
    for _ in range(2):  # exporting again changes nothing
        done = home.call("curves", run_id, "--tensorboard", str(tmp_path))
        assert done.returncode == 0, done.stderr
    reader = accumulator.EventAccumulator(
        str(tmp_path / run_id), size_guidance={accumulator.SCALARS: 0}
    )
    reader.Reload()
    assert [each.step for each in reader.Scalars("loss")] == list(range(1, STEPS + 1))
