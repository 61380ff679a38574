"""An interpreter of one's own is looked at before a run is declared."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tracks_dagster.attempts.effects.local.project_code import ask_interpreter, check_interpreter
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.training.software import foresee_software


def program(folder: Path, text: str) -> str:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_the_interpreter_of_this_environment_can_run_a_project() -> None:
    assert check_interpreter(sys.executable, store_url="s3://b/p") == sys.executable


def test_a_name_is_looked_up_on_the_path_of_who_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = program(tmp_path, f'exec {sys.executable} "$@"')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert check_interpreter("python", store_url="/a/store") == mine


def test_a_path_has_no_way_back_in_it_unless_that_leads_elsewhere(tmp_path: Path) -> None:
    """Python calls itself by the path without it, and is forked only by its own name."""
    mine = program(tmp_path, f'exec {sys.executable} "$@"')
    (tmp_path / "project").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "project" / "deep")
    (tmp_path / "project" / "deep").mkdir()
    back = f"{tmp_path}/project/../python"
    assert check_interpreter(back, store_url="/a/store") == mine
    elsewhere = f"{tmp_path}/linked/../../python"  # of project/deep, by way of the link
    assert check_interpreter(elsewhere, store_url="/a/store") == elsewhere


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f'exec {sys.executable} -S -I "$@"', "it lacks torch .* -m pip install tracks-dagster"),
        ("exit 3", "it ended with 3"),
        ("echo wrong >&2; exit 1", "wrong"),
    ],
)
def test_one_that_lacks_what_a_trainer_imports_is_refused(
    tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        check_interpreter(program(tmp_path, text), store_url="/a/store")


def test_one_for_a_store_in_a_bucket_needs_the_packages_for_it(tmp_path: Path) -> None:
    python = program(tmp_path, f'exec {sys.executable} -S -I "$@"')
    with pytest.raises(
        InvalidInput, match=r"lacks .*boto3.* -m pip install 'tracks-dagster\[s3\]'"
    ):
        check_interpreter(python, store_url="s3://bucket/prefix")


def test_an_interpreter_tells_what_a_gang_would_compute_with(tmp_path: Path) -> None:
    found = ask_interpreter(program(tmp_path, f'OMP_NUM_THREADS=3 exec {sys.executable} "$@"'))
    here = {**foresee_software({"OMP_NUM_THREADS": "3"})}
    # A wheel that was built of this checkout leaves its version in the folder, which pytest looks in.
    assert found.pop("tracks-dagster")
    del here["tracks-dagster"]
    assert found == here
    assert ask_interpreter(program(tmp_path, "exit 1")) == {}  # its gang will say why


def test_what_lies_in_the_folder_of_who_asks_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "json.py").write_text("raise SystemExit(1)")
    assert ask_interpreter(sys.executable)


def test_one_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidInput, match="there is no such program"):
        check_interpreter("/no/such/python", store_url="/a/store")
