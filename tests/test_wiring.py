"""Settings are read once, and what cannot be used is refused in words before anything is written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tracks_dagster.core.errors import LedgerError, SettingsError, StoreUnavailable
from tracks_dagster.wiring import Settings, build


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


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg2"])
def test_the_driver_of_postgres_is_named(scheme: str) -> None:
    settings = Settings.from_environment({"TRACKS_POSTGRES_URL": f"{scheme}://u:pw@h/d"})
    assert settings.ledger_url == "postgresql+psycopg2://u:pw@h/d"
    assert "pw" not in repr(settings)


@pytest.mark.parametrize("url", ["mysql://h/d", "host=h dbname=d", "postgresql+psycopg://h/d"])
def test_another_database_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(SettingsError, match="write postgresql://user:password@host:port/database"):
        Settings.from_environment({"TRACKS_POSTGRES_URL": url})


def test_a_home_of_a_newer_version_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "format.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(SettingsError, match="format 99; this one reads 1"):
        build(Settings(home=tmp_path, store_url=str(tmp_path / "store")))
    assert [path.name for path in tmp_path.iterdir()] == ["format.json"]


def test_a_home_that_is_a_file_or_has_no_readable_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="which is a file"):
        build(Settings(home=tmp_path / "file", store_url=str(tmp_path / "store")))
    (tmp_path / "format.json").write_text("{}")
    with pytest.raises(SettingsError, match="does not say which format"):
        build(Settings(home=tmp_path, store_url=str(tmp_path / "store")))


def test_what_cannot_be_reached_leaves_no_home_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tests")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "tests")
    home = tmp_path / "home"
    with pytest.raises(StoreUnavailable):
        build(Settings(home=home, store_url="s3://bucket/prefix"))
    unreachable = "postgresql+psycopg2://u:p@127.0.0.1:1/d?connect_timeout=2"
    with pytest.raises(LedgerError):
        build(Settings(home=home, store_url=str(home / "store"), postgres_url=unreachable))
    assert not home.exists()


def test_an_application_is_built_on_an_empty_home_and_again_on_the_same(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home", store_url=str(tmp_path / "home" / "store"))
    for _ in range(2):
        app = build(settings)
        assert app.tracks.find_run("r-1") is None
        assert app.ledger.query("select run_id from training_runs") == []
    assert json.loads((tmp_path / "home" / "format.json").read_text()) == {"format": 1}


def test_building_loads_neither_dagster_nor_torch(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from tracks_dagster.wiring import Settings, build\n"
        "build(Settings.from_environment())\n"
        "print([name for name in ('dagster', 'torch', 'duckdb') if name in sys.modules])"
    )
    environment = {"TRACKS_HOME": str(tmp_path / "home"), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
