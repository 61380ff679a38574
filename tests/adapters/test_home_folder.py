"""The home is for its user alone; one that is wider is told, with what narrows it."""

from __future__ import annotations

import os
from pathlib import Path

from tracks_dagster.adapters.home_folder import how_open, prepare_home


def test_a_home_is_made_for_its_user_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o000)
    try:
        prepare_home(tmp_path / "deep" / "home")
    finally:
        os.umask(before)
    assert (tmp_path / "deep" / "home").stat().st_mode & 0o777 == 0o700
    assert how_open(tmp_path / "deep" / "home") is None


def test_a_home_that_is_wider_stays_and_is_told_with_the_command_that_narrows_it(
    tmp_path: Path,
) -> None:
    tmp_path.chmod(0o755)
    prepare_home(tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    assert f"chmod 700 {tmp_path}" in (how_open(tmp_path) or "")
