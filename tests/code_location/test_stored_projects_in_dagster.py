"""A project that one machine stored is scheduled and launched on another that has the store alone."""

from __future__ import annotations

import shutil
from datetime import datetime
from pathlib import Path

import pytest
from dagster import AssetKey, DagsterInstance, Definitions, RunRequest, build_sensor_context

from tests.code_location.test_retraining import (
    MONDAY,
    NEXT,
    TRACKS_YAML,
    committed,
    end,
    launch,
    loaded,
    tick,
)
from tests.fakes import FakeOrchestrator
from tests.histories import DatasetHistory
from tests.plain_site import watch_attempts
from tracks_dagster.attempts.effects.local.project_code import read_project_code
from tracks_dagster.attempts.effects.retraining import TAKEN_MAX, take_run
from tracks_dagster.factory import build_defs
from tracks_dagster.home.stored_projects import store_project, sync_project
from tracks_dagster.settings import Settings
from tracks_dagster.track.records import sha256_hex
from tracks_dagster.track.track import code_key
from tracks_dagster.wiring import App, build

CRON_ALONE = TRACKS_YAML.replace(", on: new snapshot, only_if: snapshot differs", "")


@pytest.fixture
def other(app: App, tmp_path: Path) -> App:
    """Another machine's application, on the store of this one."""
    given = {"TRACKS_HOME": str(tmp_path / "other"), "TRACKS_STORE": app.store.url}
    return build(Settings.from_environment(given))


def test_a_project_of_one_machine_is_scheduled_and_launched_on_another(
    app: App,
    other: App,
    tmp_path: Path,
    instance: DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
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
    monkeypatch.setenv("TRACKS_HOME", str(tmp_path / "nobody's"))
    of_home = {"TRACKS_HOME": str(other.settings.home)}
    shutil.move(app.settings.home / "store", tmp_path / "away")  # what was known is loaded
    theirs = build_defs(prefix="ml", added=True, settings=of_home)
    shutil.move(tmp_path / "away", app.settings.home / "store")
    key = AssetKey(["ml", "my-model", "training"])
    assert key in theirs.resolve_all_asset_keys()
    assert key not in build_defs(prefix="ml", added=True).resolve_all_asset_keys()
    schedule = loaded(other)
    assert "the newest stored version, now 1," in (schedule.description or "")
    asked = tick(other, instance, schedule=schedule)
    assert isinstance(asked, RunRequest)
    run_id = launch(other, instance, asked)

    declared = app.tracks.run(run_id).declared  # the first machine sees it
    assert declared.trainer == code_key(run_id, sha256_hex(found.archive))
    assert (declared.folder, declared.owner) == ("projects/my-model@1", "schedule")
    assert declared.config["lr"] == 0.1


def test_a_run_of_its_schedule_is_declared_by_one_home_of_those_that_have_the_store(
    app: App, other: App, tmp_path: Path, instance: DagsterInstance
) -> None:
    committed(app, DatasetHistory("corpus").declare())
    (folder := tmp_path / "mine").mkdir()
    (folder / "train.py").write_text("print('hello')\n")
    (folder / "tracks.yaml").write_text(CRON_ALONE)
    found = read_project_code(folder, store_url=app.store.url, clean=app.redact)
    store_project(app.tracks, found, by="ann", where="a", place=str(folder))
    homes = (app, other)
    for home in homes:
        sync_project(home.tracks, home.settings.home, "my-model")
    schedules = [loaded(home) for home in homes]

    def asked(number: int, at: datetime) -> RunRequest | str:
        found = tick(homes[number], instance, at, schedule=schedules[number])
        return found if isinstance(found, RunRequest) else (found.skip_message or "")

    first = asked(0, MONDAY)
    assert isinstance(first, RunRequest)
    taken = asked(1, MONDAY)
    assert isinstance(taken, str)
    assert "my-model-20260202-0300 is declared by another home of this store, on " in taken
    assert asked(0, MONDAY) == first  # a tick that is repeated

    run_id = launch(app, instance, first)
    busy = asked(1, NEXT)
    assert isinstance(busy, str)
    assert f"skipped: {run_id}, the schedule's last run, is not finished" in busy
    assert other.ledger.query("select run_id from training_runs") == []

    end(app, run_id)
    assert isinstance(asked(1, NEXT), RunRequest)  # the one who is first
    assert isinstance(asked(0, NEXT), str)


def test_a_run_that_a_home_took_and_never_declared_is_taken_over(
    app: App, other: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / "mine").mkdir()
    (folder / "train.py").write_text("")
    (folder / "tracks.yaml").write_text(CRON_ALONE)
    found = read_project_code(folder, store_url=app.store.url, clean=app.redact)
    store_project(app.tracks, found, by="ann", where="a", place=str(folder))

    def take(home: App) -> str | None:
        own, run_id = home.settings.database_id, "my-model-1"
        return take_run(home.tracks, "my-model", run_id, home=own, where="here")

    assert take(app) is None
    assert take(other) is not None
    now = other.tracks.now()
    monkeypatch.setattr(other.tracks, "now", lambda: now + 2 * TAKEN_MAX)
    assert take(other) is None
    assert take(app) is not None


def test_a_home_is_distinguished_by_its_database_whatever_its_password_is(tmp_path: Path) -> None:
    given = {"TRACKS_HOME": str(tmp_path / "home")}
    alone = Settings.from_environment(given).database_id
    assert alone != Settings.from_environment({"TRACKS_HOME": str(tmp_path / "b")}).database_id
    one, two, three = (
        Settings.from_environment({**given, "TRACKS_POSTGRES_URL": url}).database_id
        for url in (
            "postgresql://ann:first-one@db:5432/tracks",
            "postgresql://ann:second-one@db:5432/tracks",
            "postgresql://ann:second-one@db:5432/others",
        )
    )
    assert one == two
    assert len({alone, one, three}) == 3
