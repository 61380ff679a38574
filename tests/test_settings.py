"""Settings are read once; they mean the same in every process, and nonsense is refused in words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tracks_dagster.home.web_server import ADDRESS_FILE
from tracks_dagster.processes.process import this_process, write_process
from tracks_dagster.settings import Settings, find_ui_url
from tracks_dagster.track.errors import SettingsError


def test_everything_lives_beside_workspace_yaml_by_default() -> None:
    settings = Settings.from_environment({"TRACKS_HOME": "", "TRACKS_STORE": ""})
    root = Path(__file__).resolve().parents[1]
    assert settings.home == root / ".tracks"
    assert settings.store_url == str(root / ".tracks" / "store")
    assert settings.ledger_url == f"sqlite:///{root}/.tracks/ledger.db"


def test_paths_mean_the_same_in_processes_that_start_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings.from_environment({"TRACKS_HOME": "home", "TRACKS_STORE": "objects"})
    assert settings.environment["TRACKS_HOME"] == str(tmp_path / "home")
    assert settings.environment["TRACKS_STORE"] == str(tmp_path / "objects")
    assert Settings.from_environment(settings.environment).home == settings.home
    assert settings.rules_file is None
    settings = Settings.from_environment({"TRACKS_RULES": "rules.yaml"})
    assert settings.rules_file == tmp_path / "rules.yaml"
    assert Settings.from_environment(settings.environment).rules_file == settings.rules_file


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg2"])
def test_the_driver_of_postgres_is_named(scheme: str) -> None:
    settings = Settings.from_environment({"TRACKS_POSTGRES_URL": f"{scheme}://u:pw@h/d"})
    assert settings.ledger_url == "postgresql+psycopg2://u:pw@h/d"
    assert "pw" not in repr(settings)


@pytest.mark.parametrize("url", ["mysql://h/d", "host=h dbname=d", "postgresql+psycopg://h/d"])
def test_another_database_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(SettingsError, match="write postgresql://user:password@host:port/database"):
        Settings.from_environment({"TRACKS_POSTGRES_URL": url})


def test_links_of_an_exported_run_lead_only_where_a_person_says(tmp_path: Path) -> None:
    archive, here = tmp_path / "run.zip", "http://127.0.0.1:4000"
    archive.touch()
    (tmp_path / "dagster").mkdir()
    write_process(tmp_path / "dagster" / ADDRESS_FILE, this_process(), address=here)
    home = Settings(home=tmp_path, store_url=str(tmp_path / "store"))
    exported = replace(home, store_url=str(archive))
    assert (home.is_archive, exported.is_archive) == (False, True)
    assert (find_ui_url(home), find_ui_url(exported)) == (here, "")
    assert find_ui_url(replace(exported, ui_url="https://other")) == "https://other"


@pytest.mark.parametrize("days", ["0", "-1", "x", "nan", "inf", "1e9"])
def test_days_in_the_ui_that_are_not_valid_are_refused(days: str) -> None:
    with pytest.raises(SettingsError, match="TRACKS_UI_DAYS is"):
        Settings.from_environment({"TRACKS_UI_DAYS": days})


def test_days_in_the_ui_mean_the_same_in_another_process() -> None:
    settings = Settings.from_environment({"TRACKS_UI_DAYS": "0000007.5"})
    assert Settings.from_environment(settings.environment).ui_days == 7.5


def test_one_application_a_process_is_built_for_equal_settings() -> None:
    given = {"TRACKS_HOME": "/h", "TRACKS_KUBERNETES": "/h/k.yaml"}
    first, second = (Settings.from_environment(given) for _ in range(2))
    assert len({first, second}) == 1
