"""A new tracks.yaml explains every key, and is read back as what it was written from."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.examples import saves
from tracks_dagster.projects.effects.project_file import ProjectFile, read_project
from tracks_dagster.projects.project_text import KEYS, render_project
from tracks_dagster.projects.script_config import read_script_config
from tracks_dagster.track.records import Json
from tracks_dagster.training.projects import __path__ as projects

LEAST: dict[str, Json] = {"version": 1, "name": "tiny", "entry": "train.py"}
ODD = ["3e-4", "yes", "no", "1", "null", "# no comment", "a: b", "it's", 'a "b"', "ü", "10min", ""]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("")
    return tmp_path


def test_every_key_that_a_project_file_may_have_is_explained_in_a_new_one() -> None:
    assert set(KEYS) == {field.alias for field in ProjectFile.model_fields.values()}
    lines = render_project(LEAST).splitlines()
    assert all(any(each.lstrip("# ").startswith(f"{key}:") for each in lines) for key in KEYS)
    assert max(map(len, lines)) <= 100


def test_a_new_file_is_read_back_as_it_was_given(folder: Path) -> None:
    config: dict[str, Json] = {
        **{f"text_{place}": text for place, text in enumerate(ODD)},
        "lr": 1e-05,
        "big": 10**12,
        "on": True,
        "none": None,
        "betas": [0.9, "x, y"],
    }
    given: dict[str, Json] = {
        "config": config,
        "entry": "train.py --lr={lr} --note 'a: b # c'",
        "keys": {"steps": "big"},
        "dataset": "my data",
        "ranks": 2,
        "checkpoint": {"every_steps": 5, "every": "90s"},
    }
    (folder / "tracks.yaml").write_text(render_project({**LEAST, **given}))
    project = read_project(folder)
    assert {name: key.default for name, key in project.keys.items()} == config
    assert project.entry == ("train.py", "--lr={lr}", "--note", "a: b # c")
    assert (project.roles["steps"], project.dataset, project.value("ranks")) == (
        "big",
        "my data",
        2,
    )
    assert saves(project) == (5, 90.0)


def test_every_example_in_a_new_file_is_valid_where_its_mark_is_taken_away(folder: Path) -> None:
    for path in (".venv/bin/python", "evaluate.py", "x"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).touch()
    examples = {
        **{name: key.example for name, key in KEYS.items()},
        "config": {"lr": 0.1, "max_iters": 9, "batch_size": 8},
    }
    (folder / "tracks.yaml").write_text(render_project(examples))
    assert read_project(folder).dataset == "my-data"


HEAD = "import argparse\nparser = argparse.ArgumentParser()\n"
CERTAIN = """
parser.add_argument("-b", "--batch-size", type=int, default=8, help="samples", metavar="N")
parser.add_argument("--lr", default=1, type=float)
parser.add_argument("--low", default=-0.5, type=float)
parser.add_argument("--model", default="small", choices=["small", "large"])
"""
UNCERTAIN = """
parser.add_argument("--decay", type=float)
parser.add_argument("--verbose", action="store_true")
parser.add_argument("--sizes", type=int, nargs="+", default=[1])
parser.add_argument("--out", default=OUT)
parser.add_argument("--warm", type=parse, default=3)
parser.add_argument("--flag", type=bool, default=True)
parser.add_argument("--half", type=int, default=0.5)
group.add_argument("--of-a-group", type=int, default=3)
"""


def test_arguments_with_a_literal_default_become_keys_and_nothing_else_does() -> None:
    found = read_script_config(HEAD + CERTAIN + UNCERTAIN)
    assert found.keys == {"batch_size": 8, "lr": 1.0, "low": -0.5, "model": "small"}
    assert [type(found.keys[key]) for key in ("lr", "batch_size")] == [float, int]
    assert found.arguments == (
        "--batch-size={batch_size}",
        "--lr={lr}",
        "--low={low}",
        "--model={model}",
    )


@pytest.mark.parametrize(
    "source",
    [
        HEAD + CERTAIN + 'parser.add_argument("data")\n',
        HEAD + CERTAIN + 'parser.add_argument("--data", required=True)\n',
        HEAD + CERTAIN + "parser.add_argument(*names)\n",
        HEAD + CERTAIN + 'parser.add_argument("--x", **more)\n',
        HEAD + CERTAIN + "parser.add_subparsers()\n",
        HEAD + CERTAIN + "other = argparse.ArgumentParser()\n",
        HEAD + CERTAIN + 'parser.add_argument("--lr", default=2.0, type=float)\n',
        "parser = our.Parser()\n" + CERTAIN,
        "this is not Python",
        "with attempt.join(config=load()) as a: ...\n",
        'with attempt.join(config={"lr": 1, 2: 3}) as a: ...\n',
        'with attempt.join(config={"model": {"layers": 2}}) as a: ...\n',
    ],
)
def test_a_script_that_leaves_a_doubt_gives_no_keys(source: str) -> None:
    found = read_script_config(source)
    assert (found.keys, found.arguments) == ({}, ())


@pytest.mark.parametrize(
    "source",
    [
        'C = {"lr": 0.1, "n": 3}\nwith attempt.join(config=C) as a: ...\n',
        'a = attempt.joined(config={"lr": 0.1, "n": 3})\n',
    ],
)
def test_the_config_that_join_gets_is_the_projects(source: str) -> None:
    found = read_script_config(source)
    assert (found.keys, found.arguments) == ({"lr": 0.1, "n": 3}, ())


def test_the_config_of_the_starter_is_read_too() -> None:
    source = (Path(next(iter(projects))) / "starter.py").read_text()
    (config,) = [
        ast.literal_eval(statement.value)
        for statement in ast.parse(source).body
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "CONFIG"
    ]
    assert read_script_config(source).keys == config
