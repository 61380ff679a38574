"""A project that one machine stored is scheduled and launched on another that has the store alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from dagster import DagsterInstance, Definitions, RunRequest, build_sensor_context

from tests.code_location.test_retraining import TRACKS_YAML, committed, launch, loaded, tick
from tests.fakes import FakeOrchestrator
from tests.histories import DatasetHistory
from tests.plain_site import watch_attempts
from tracks_dagster.attempts.effects.local.project_code import read_project_code
from tracks_dagster.home.stored_projects import store_project
from tracks_dagster.settings import Settings
from tracks_dagster.track.records import sha256_hex
from tracks_dagster.track.track import code_key
from tracks_dagster.wiring import App, build


@pytest.fixture
def other(app: App, tmp_path: Path) -> App:
    """Another machine's application, on the store of this one."""
    given = {"TRACKS_HOME": str(tmp_path / "other"), "TRACKS_STORE": app.store.url}
    return build(Settings.from_environment(given))


def test_a_project_of_one_machine_is_scheduled_and_launched_on_another(
    app: App, other: App, tmp_path: Path, instance: DagsterInstance
) -> None:
    committed(app, DatasetHistory("corpus").declare())
    (folder := tmp_path / "mine").mkdir()
    (folder / "train.py").write_text("print('hello')\n")
    (folder / "tracks.yaml").write_text(TRACKS_YAML)
    found = read_project_code(folder, store_url=app.store.url, clean=app.redact)
    store_project(app.tracks, found, by="ann", where="a", place=str(folder))
    shutil.rmtree(folder)

    resources = {"app": other, "orchestrator": FakeOrchestrator()}
    loaded_there = Definitions(sensors=[watch_attempts])
    with build_sensor_context(
        instance=instance, resources=resources, definitions=loaded_there
    ) as context:
        watch_attempts(context)  # the other machine's daemon, whose reload finds the project
    schedule = loaded(other)
    assert "the newest stored version, now 1," in (schedule.description or "")
    asked = tick(other, instance, schedule=schedule)
    assert isinstance(asked, RunRequest)
    run_id = launch(other, instance, asked)

    declared = app.tracks.run(run_id).declared  # the first machine sees it
    assert declared.trainer == code_key(run_id, sha256_hex(found.archive))
    assert (declared.folder, declared.owner) == ("projects/my-model@1", "schedule")
    assert declared.config["lr"] == 0.1
