"""What works less in a Dagster that is not ours is listed, and what keeps attempts from their end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from dagster import DagsterInstance, instance_for_test
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

from tracks_dagster.cli.upkeep.doctor import doctor_command
from tracks_dagster.home.deployment import (
    Deployment,
    read_deployment,
    what_is_wrong,
    works_less,
)
from tracks_dagster.track.names import Prefix

ML = Prefix("ml")
UNBOUNDED = {"concurrency": {"runs": {"max_concurrent_runs": -1}}}
OURS = {
    "run_coordinator": {
        "module": "tracks_dagster.defs.resources.run_coordinator",
        "class": "TracksRunCoordinator",
    },
    "run_launcher": {
        "module": "tracks_dagster.defs.resources.stock_run_launcher",
        "class": "StockRunLauncher",
    },
}


def words_of(found: Deployment) -> str:
    return " ".join([*works_less(found, ML), *what_is_wrong(found)])


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (OURS, []),
        (UNBOUNDED, ["DefaultRunLauncher forgets its runs"]),
        ({}, ["starts at most 10 runs at once", "tracks stop RUN", "DefaultRunLauncher"]),
    ],
)
def test_what_works_less_is_listed_for_a_deployment_that_is_not_ours(
    overrides: dict[str, Any], words: list[str]
) -> None:
    with instance_for_test(overrides=overrides) as instance:
        found = words_of(read_deployment(instance, ML))
    assert all(each in found for each in words)
    assert bool(found) is bool(words)


def test_a_launcher_whose_dead_runs_nobody_finds_is_wrong_and_one_that_is_monitored_is_not() -> (
    None
):
    unseen = Deployment(runs_max=None, launcher="K8sRunLauncher", finds_dead_runs=False)
    assert "run_monitoring: {enabled: true}" in " ".join(what_is_wrong(unseen))
    monitored = Deployment(runs_max=None, launcher="K8sRunLauncher", finds_dead_runs=True)
    assert list(what_is_wrong(monitored)) == []
    assert "does not record why a run worker ended" in words_of(monitored)


def switch_off(instance: DagsterInstance, sensor: str) -> None:
    place = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("theirs"), "__repository__")
    state = InstigatorState(
        RemoteInstigatorOrigin(place, sensor),
        InstigatorType.SENSOR,
        InstigatorStatus.STOPPED,
        SensorInstigatorData(),
    )
    instance.add_instigator_state(state)


def test_a_sensor_that_is_off_is_missing_to_the_doctor_by_its_name_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dagster = tmp_path / "theirs"
    dagster.mkdir()
    (dagster / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    monkeypatch.setenv("TRACKS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TRACKS_PREFIX", "ml")
    monkeypatch.setenv("DAGSTER_HOME", str(dagster))

    def of_dagster() -> list[tuple[str, str]]:
        done = CliRunner().invoke(doctor_command, ["--json"])
        found = json.loads(done.output)["findings"]
        return [(each["health"], each["words"]) for each in found if each["check"] == "Dagster"]

    assert {health for health, _ in of_dagster()} == {"ok"}
    with DagsterInstance.from_config(str(dagster)) as instance:
        switch_off(instance, "watch_attempts")  # another set's
        assert {health for health, _ in of_dagster()} == {"ok"}
        switch_off(instance, "ml_watch_attempts")
    [(health, words), *_] = of_dagster()
    assert health == "missing"
    assert "ml_watch_attempts is off" in words
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "none"))
    [(health, words)] = of_dagster()
    assert health == "unknown"
    assert str(tmp_path / "none") in words
