"""The projects of a home: added once, read with what is wrong with them, and taken away."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.examples import EXAMPLES
from tracks_dagster.projects.effects.registered import (
    SHIPPED,
    add_project,
    find_registered,
    load_projects,
    load_shipped,
    read_to_add,
    remove_project,
)
from tracks_dagster.track.errors import InvalidInput


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def made(folder: Path, name: str = "tiny", more: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text("")
    (folder / "tracks.yaml").write_text(f"name: {name}\nentry: train.py\n{more}")
    return folder


def add(home: Path, folder: Path) -> None:
    add_project(home, read_to_add(folder).name, folder)


def test_a_project_is_added_once_and_read_again_each_time(home: Path, tmp_path: Path) -> None:
    folder = made(tmp_path / "a")
    for _ in range(2):
        add(home, folder)
    made(folder, more="ranks: 2\n")
    assert [each.name for each in load_projects(home, EXAMPLES)] == [*SHIPPED, "tiny"]
    assert find_registered(home, EXAMPLES, "tiny").read().value("ranks") == 2
    assert remove_project(home, "tiny") == folder
    assert load_projects(home, EXAMPLES) == load_shipped(EXAMPLES)
    assert (folder / "tracks.yaml").is_file()


def test_what_cannot_be_added_or_removed_is_refused_in_words(home: Path, tmp_path: Path) -> None:
    add(home, made(tmp_path / "a"))
    with pytest.raises(
        InvalidInput, match=f"Another project is called tiny: the one of {tmp_path}/a"
    ):
        add(home, made(tmp_path / "b"))
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(InvalidInput, match="/a, which does not exist any more"):
        add(home, tmp_path / "b")
    with pytest.raises(InvalidInput, match="gpt is a project that ships"):
        add(home, made(tmp_path / "b", name="gpt"))
    with pytest.raises(InvalidInput, match="holds no project"):
        add(home, tmp_path)
    with pytest.raises(InvalidInput, match="gpt ships and is always there"):
        remove_project(home, "gpt")
    with pytest.raises(InvalidInput, match=r"'\.\./home' is not a project"):
        remove_project(home, "../home")
    with pytest.raises(InvalidInput, match="'tniy' is not a project; did you mean tiny"):
        find_registered(home, EXAMPLES, "tniy")


def test_a_project_that_cannot_be_read_hides_no_other(home: Path, tmp_path: Path) -> None:
    names = ("gone", "renamed", "wrong", "well")
    for name in names:
        add(home, made(tmp_path / name, name=name))
    shutil.rmtree(tmp_path / "gone")
    made(tmp_path / "renamed", name="other")
    made(tmp_path / "wrong", name="wrong", more="ranks: none\n")
    (home / "projects" / "Not.Ours").symlink_to(tmp_path)
    found = {each.name: each for each in load_projects(home, EXAMPLES)[len(SHIPPED) :]}
    assert set(found) == set(names)
    assert found["well"].read().name == "well"
    for name, words in (
        ("gone", f"its folder {tmp_path}/gone does not exist any more. Put it back, or"),
        ("renamed", "calls it other now"),
        ("wrong", "line 3: ranks"),
    ):
        with pytest.raises(InvalidInput, match="cannot be read") as error:
            found[name].read()
        assert words in str(error.value)


def test_an_example_that_is_gone_or_renamed_is_reported_and_hides_no_other(tmp_path: Path) -> None:
    made(tmp_path / "tabular", name="other")
    gpt, tabular = load_shipped(tmp_path)
    assert (gpt.is_shipped, tabular.is_shipped) == (True, True)
    assert f"folder {tmp_path}/gpt does not exist any more" in gpt.problem
    assert "calls it other now" in tabular.problem
