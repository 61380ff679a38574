"""The home is for its user alone; one that is wider is reported, with what narrows it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fakes import FakeClock, SequentialUids
from tests.stories import RUN_ID, Story
from tracks_dagster.cli.start import up
from tracks_dagster.home.home_folder import how_open, prepare_home
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.review.effects.pages.report import write_report
from tracks_dagster.settings import Settings
from tracks_dagster.stores.local import LocalStore, make_root
from tracks_dagster.track.text.private_files import file_mode
from tracks_dagster.wiring import build, open_dagster_home


def test_a_home_is_made_for_its_user_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o000)
    try:
        prepare_home(tmp_path / "deep" / "home")
    finally:
        os.umask(before)
    assert (tmp_path / "deep" / "home").stat().st_mode & 0o777 == 0o700
    assert how_open(tmp_path / "deep" / "home") is None


def test_a_home_that_is_wider_stays_and_is_reported_with_the_command_that_narrows_it(
    tmp_path: Path,
) -> None:
    tmp_path.chmod(0o755)
    prepare_home(tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    assert f"chmod 700 {tmp_path}" in (how_open(tmp_path) or "")


def test_objects_and_reports_in_a_home_are_its_users_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        prepare_home(tmp_path / "home")
        make_root(tmp_path / "home" / "store")
        store = LocalStore(tmp_path / "home" / "store")
        Story(store).refused()
        tracks = Tracks(store, now=FakeClock(), new_uid=SequentialUids(), project=lambda name: None)
        write_report(tracks, RUN_ID, tmp_path / "home" / "reports" / "report.html")
    finally:
        os.umask(before)
    files = [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    wider = [path for path in files if path.stat().st_mode & 0o077]
    assert wider == [tmp_path / "home" / "format.json"]
    assert {".html", ".json", ".jsonl"} <= {path.suffix for path in files}


@pytest.mark.parametrize(
    ("folders", "mode"),
    [((0o755, 0o700, 0o755), 0o600), ((0o2775, 0o1777, 0o755), 0o666), ((0o750, 0o755), 0o666)],
)
def test_a_store_that_others_may_enter_stays_shared(folders: tuple[int, ...], mode: int) -> None:
    assert file_mode(folders) == mode


def test_up_tells_of_a_wider_home_with_the_command_that_narrows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o755)
    settings = Settings(home=home, store_url=str(home / "store"), root=tmp_path)
    (home / "dagster").mkdir()
    up._report_what_runs(build(settings), open_dagster_home(settings))
    assert capsys.readouterr().err.count(f"`chmod 700 {home}` narrows it") == 1


def test_up_shows_the_traceback_of_a_defect_that_its_look_around_met(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(settings: Settings) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(up, "build", broken)
    settings = Settings(home=tmp_path, store_url=str(tmp_path / "store"), root=tmp_path)
    assert up._look_around(settings, open_dagster_home(settings)) == 1
    assert "RuntimeError: a defect" in capsys.readouterr().err
