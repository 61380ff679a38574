"""`tracks init`, called as by a person: from options, on a terminal, and where it must not write."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.cli.conftest import Call
from tests.examples import saves
from tracks_dagster.cli import main
from tracks_dagster.projects.effects.project_file import read_project
from tracks_dagster.scheduling.policy import Order
from tracks_dagster.settings import read_policy_file
from tracks_dagster.track.bodies import PromotionRule

ARGPARSE = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--max-iters", type=int, default=600)
parser.add_argument("--lr", type=float, default=3e-4)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which the command is called."""
    folder = tmp_path / "My Model_2"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_an_empty_folder_becomes_a_project_that_can_be_run(
    folder: Path, call: Call, home: Path
) -> None:
    done = call("init")
    assert "my-model-2 starts train.py. Its config: steps, lr," in done.stdout
    assert "No key means" not in done.stdout
    project = read_project(folder)
    assert (project.name, project.entry) == ("my-model-2", ("train.py",))
    assert saves(project) == (100, 600.0)
    assert ([each.entry for each in project.evals], project.promotion) == (
        [("train.py",)],
        PromotionRule(
            alias="candidate",
            suite="quality",
            metric="loss",
            direction="min",
            threshold=4.0,
            better_by=0.0,
        ),
    )
    assert (folder / "train.py").read_text().startswith('"""An example to replace')
    assert not home.exists()


def test_a_script_of_ones_own_gives_its_arguments_and_stays_as_it_is(
    folder: Path, call: Call
) -> None:
    (folder / "train.py").write_text(ARGPARSE)
    options = ("--name", "mine", "--key", "steps=max_iters", "--set", "lr=0.1", "--ranks", "2")
    said = json.loads(call("init", *options, "--checkpoint-every", "7", "--json").stdout)
    assert said["written"] == ["tracks.yaml"]
    project = read_project(folder)
    assert project.entry == ("train.py", "--max-iters={max_iters}", "--lr={lr}")
    written = (folder / "tracks.yaml").read_text()
    assert "\nentry: train.py --max-iters={max_iters} --lr={lr}\n" in written
    assert {name: key.default for name, key in project.keys.items()} == {
        "max_iters": 600,
        "lr": 0.1,
    }
    assert (project.roles["steps"], project.value("ranks")) == ("max_iters", 2)
    assert saves(project) == (7, None)
    assert (folder / "train.py").read_text() == ARGPARSE


def test_it_says_what_a_script_of_ones_own_still_needs(folder: Path, call: Call) -> None:
    (folder / "train.py").write_text(ARGPARSE)
    said = call("init", "--key", "steps=max_iters").stdout
    assert "train.py does not join an attempt yet: docs/join.md" in said
    assert "No key means micro_batch" in said
    assert "No key means steps" not in said
    (folder / "tracks.yaml").unlink()
    (folder / "train.py").write_text(f"from tracks_dagster.training import attempt\n{ARGPARSE}")
    assert "does not join" not in call("init").stdout


def test_a_trainer_that_speaks_by_files_saves_by_itself(folder: Path, call: Call) -> None:
    (folder / "train.sh").write_text('mv "$half" "$TRACKS_CHECKPOINTS/step-$1"\n')
    (folder / "train.sh").chmod(0o755)
    entry = ("--entry", "./train.sh {steps}", "--set", "steps=12")
    call("init", *entry)
    assert "\ncheckpoint: folder\n" in (folder / "tracks.yaml").read_text()
    assert read_project(folder).by_files
    (folder / "tracks.yaml").unlink()
    (folder / "train.py").write_text("folder = os.environ['TRACKS_CHECKPOINTS']\n")
    said = call("init").stdout
    assert read_project(folder).by_files
    assert "does not join" not in said


def test_on_a_terminal_it_asks_and_takes_what_is_offered(
    folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for script in ("one.py", "two.py"):
        (folder / script).touch()
    runner = CliRunner()
    with runner.isolation(input="\ntwo.py --fast\ncorpus\n\n50\n"):
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
        main(["init"], standalone_mode=False)
    project = read_project(folder)
    assert (project.name, project.entry) == ("my-model-2", ("two.py", "--fast"))
    assert (project.dataset, project.value("ranks")) == ("corpus", 1)
    assert saves(project) == (50, None)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "say what a rank starts, for example --entry model.py; there are: model.py."),
        (("--entry", "trian.py"), "No tracks.yaml was written: entry: there is no trian.py"),
        (("--entry", "../model.py"), "--entry: ../model.py lies outside the project"),
        (("--entry", "model.py", "--name", "A B"), "name: 'A B' cannot name a project"),
        (("--entry", "model.py", "--ranks", "0"), "ranks: 0 is not a number of ranks"),
        (("--entry", "model.py", "--key", "steps=n"), "keys.steps: 'n' is not a config key"),
        (("--entry", "model.py", "--key", "stpes=n"), "did you mean steps?"),
        (("--entry", "model.py --lr={lr}"), "{lr}: 'lr' is not a config key"),
        (("--entry", "model.py", "--config", "c.yaml"), "c.yaml cannot be read"),
        (("--entry", "model.py", "--config", "c.yaml", "--set", "a=1"), "give one of them"),
        (("--entry", "model.py", "--set", "hang_s=soon"), "hang_s = 'soon' is not a number"),
        (("--entry", "model.py", "--python", "no/python"), "python: there is no interpreter"),
        (("model.py",), "model.py is not a folder"),
        (("new", "--entry", "trian.py"), "entry: there is no trian.py"),
        (("no/such/parent",), "cannot be written (No such file or directory)"),
    ],
)
def test_bad_input_says_what_is_valid_and_writes_nothing(
    folder: Path, call: Call, options: tuple[str, ...], words: str
) -> None:
    (folder / "model.py").touch()
    refused = call("init", *options)
    assert refused.exit_code == 2
    assert words in refused.stderr
    assert names(folder) == ["model.py"]


@pytest.mark.parametrize("is_link", [False, True])
def test_a_file_that_is_there_is_never_overwritten(folder: Path, call: Call, is_link: bool) -> None:
    if is_link:
        (folder / "tracks.yaml").symlink_to("nowhere")
    else:
        (folder / "tracks.yaml").write_text("mine")
    refused = call("init")
    assert refused.exit_code == 2
    assert "is there already and stays as it is" in refused.stderr
    assert names(folder) == ["tracks.yaml"]


def test_a_policy_is_written_from_six_answers_and_never_over_another(
    home: Path, call: Call
) -> None:
    done = call("init", "--policy", "--answer", "expense=days", "--answer", "people=ada,#grace")
    assert done.exit_code == 0, done.output
    assert "submission.required_fields: intent, expect, on_call" in done.stdout
    assert "governance.may_promote: ada, #grace" in done.stdout
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    text = (home / "policy.yaml").read_text()
    assert call("policy", "--check", str(home / "policy.yaml")).exit_code == 0
    again = call("init", "--policy")
    assert again.exit_code == 2
    assert "is there already and stays as it is" in again.stderr
    assert (home / "policy.yaml").read_text() == text


def test_on_a_terminal_the_six_questions_are_asked_until_they_are_answered(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = ["day", "days", "rarely", "teams", "results", "owner", "week"]
    runner = CliRunner()
    with runner.isolation(input="\n".join([*replies, ""])):
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
        main.main(["init", "--policy"], standalone_mode=False)
    policy = read_policy_file(home / "policy.yaml")
    assert policy.scheduling.order is Order.FAIR
    assert policy.contracts.governance.may_waive == ("owner",)
    assert policy.contracts.retention.delete_after_s == 7 * 86_400


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--policy", "--answer", "expense"), "write for example expense=days"),
        (("--policy", "--answer", "expense=dayz"), "did you mean days?"),
        (("--answer", "expense=days"), "--answer belongs to --policy"),
        (("--policy", "--answer", "expense=days", "--answer", "expense=hours"), "given twice"),
        (("--policy", "--answer", "people=anyone,ada"), "'anyone,ada' is not an answer"),
        (("--policy", "somewhere"), "DIR belongs to a project's tracks.yaml"),
        (("--policy", "--name", "mine"), "--name belongs to a project's tracks.yaml"),
    ],
)
def test_answers_that_cannot_be_meant_write_nothing(
    home: Path, call: Call, arguments: tuple[str, ...], words: str
) -> None:
    refused = call("init", *arguments)
    assert refused.exit_code == 2
    assert words in refused.stderr
    assert not home.exists()
