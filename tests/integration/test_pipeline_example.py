"""A team's own Dagster project under `dagster dev`: what comes in is trained on and scored by itself.

In `--full` only: `tests/code_location/test_pipeline_example.py` has its graph, without a daemon.
"""

from __future__ import annotations

import csv
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from dagster import AssetKey, DagsterInstance

from tests.integration.homes import COMMAND_S_MAX, wait_for
from tests.ports import free_port
from tracks_dagster.settings import EXAMPLES

FIRST_LOOK = "Finished auto-materialization tick"  # in the log of Dagster's daemon

pytestmark = [pytest.mark.full, pytest.mark.timeout(6 * COMMAND_S_MAX)]

SCORES, DATASET = AssetKey("churn_scores"), AssetKey(["datasets", "customers"])
TRAINING, MODEL = AssetKey(["churn", "training"]), AssetKey(["churn", "model"])
END_S_MAX = 60  # of `dagster dev` after Ctrl-C
MODULE = ("-m", "churn_pipeline.definitions")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the example, in a Dagster home and a home of ours."""
    folder = tmp_path / "project"
    shutil.copytree(EXAMPLES / "pipeline", folder)
    (tmp_path / "dagster").mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "dagster"))
    monkeypatch.setenv("TRACKS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CHURN_DATA", str(tmp_path / "data"))
    return folder


def dagster(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "dagster", *arguments]


@pytest.fixture
def instance(project: Path, tmp_path: Path) -> Iterator[DagsterInstance]:
    """The user's Dagster, whose storage is made before anything else comes."""
    (tmp_path / "dagster" / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    with DagsterInstance.get() as made:
        yield made


@pytest.fixture
def dev(instance: DagsterInstance, project: Path, tmp_path: Path) -> Iterator[None]:
    """`dagster dev` in the project's folder, as its user starts it.

    What was materialized before its first look at the assets is not new to Dagster, so that is awaited.
    """
    command = dagster("dev", *MODULE, "-p", str(free_port()))
    path = tmp_path / "dev.log"
    with path.open("w") as log:
        process = subprocess.Popen(
            command, cwd=project, stdout=log, stderr=log, start_new_session=True
        )
        try:
            wait_for(lambda: FIRST_LOOK in path.read_text(errors="replace"))
            yield
        finally:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_S_MAX)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def new_month(number: int, *, count: int = 200) -> None:
    """Write the customers of a month: who calls often leaves."""
    print(f"seed {number}")
    drawn = random.Random(number)
    folder = Path(os.environ["CHURN_DATA"]) / "incoming"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{number}.csv").open("w", newline="") as lines:
        writer = csv.writer(lines)
        writer.writerow(["customer", "months", "calls", "churned"])
        for each in range(count):
            calls = drawn.randrange(20)
            writer.writerow([f"{number}-{each}", drawn.randrange(60), calls, int(calls > 10)])


def bring_in(project: Path) -> None:
    """Materialize the first asset, as its user would in the UI."""
    command = dagster("asset", "materialize", *MODULE, "--select", "raw_customers")
    subprocess.run(command, cwd=project, check=True, capture_output=True, timeout=COMMAND_S_MAX)


def counts(instance: DagsterInstance) -> dict[AssetKey, int]:
    """Return how often each asset after the first was materialized."""
    keys = (DATASET, TRAINING, MODEL, SCORES)
    return {key: len(instance.fetch_materializations(key, limit=99).records) for key in keys}


def scored() -> int:
    with (Path(os.environ["CHURN_DATA"]) / "scores.csv").open() as lines:
        return len(list(csv.DictReader(lines)))


@pytest.mark.usefixtures("dev")
def test_new_customers_are_trained_on_and_scored_without_a_hand_and_equal_ones_are_not(
    project: Path, instance: DagsterInstance
) -> None:
    new_month(1)
    bring_in(project)
    wait_for(lambda: counts(instance)[SCORES] == 1)
    assert scored() == 200
    first = counts(instance)
    assert (first[TRAINING], first[MODEL]) == (1, 1)

    new_month(2)
    bring_in(project)
    wait_for(lambda: counts(instance)[MODEL] == 2 and counts(instance)[SCORES] >= 2)
    assert scored() == 400

    bring_in(project)  # the same files: a snapshot that is there already
    wait_for(lambda: counts(instance)[DATASET] == 3 and counts(instance)[SCORES] >= 3)
    assert (counts(instance)[TRAINING], counts(instance)[MODEL]) == (2, 2)
