"""Settings are read once; they mean the same in every process, and nonsense is refused in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracks_dagster.core.errors import SettingsError
from tracks_dagster.settings import Settings


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
