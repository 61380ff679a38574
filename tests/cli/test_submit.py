"""`tracks submit`: a run is declared, nothing is started, and the same again is the same run."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tracks_dagster.attempts.effects.heartbeat import write_heartbeat
from tracks_dagster.cli.start import submit as submit_command
from tracks_dagster.cli.start.follow import Followed
from tracks_dagster.reading import open_tracks_to_read
from tracks_dagster.settings import Settings
from tracks_dagster.stores import open_store
from tracks_dagster.track.states.run_state import RunState

YAML = """
name: tiny
entry: train.py --lr={lr} --steps={steps}
config: {lr: 0.1, steps: 40}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "tracks.yaml").write_text(YAML)
    (folder / "train.py").write_text("print('hello')\n")
    return folder


def run_of(run_id: str) -> RunState:
    return open_tracks_to_read(Settings.from_environment()).run(run_id)


def test_a_run_is_declared_and_only_its_id_is_printed(
    call: Call, home: Path, project: Path
) -> None:
    done = call("submit", str(project), "--set", "lr=0.2", "--intent", "Try a larger rate.")
    assert (done.exit_code, done.stderr) == (0, "")
    run_id = done.stdout.strip()
    state = run_of(run_id)
    assert (state.declared.model_family, state.declared.config["lr"]) == ("tiny", 0.2)
    assert (state.declared.intent, len(state.attempts)) == ("Try a larger rate.", 1)
    assert not (home / "dagster").exists()  # no daemon was set up


def test_a_project_is_named_by_its_folder_its_script_or_its_name(
    call: Call, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call("projects", "add", str(project))
    by_name = json.loads(call("submit", "tiny", "--json").stdout)
    assert (by_name["is_new"], run_of(by_name["run_id"]).declared.model_family) == (True, "tiny")
    monkeypatch.chdir(project)
    for words in ((), (".",), ("./train.py",)):
        run_id = call("submit", *words, "--run-id", f"r-{len(words)}{len(''.join(words))}").stdout
        assert run_of(run_id.strip()).attempts
    unknown = call("submit", "tinyy")
    assert (unknown.exit_code, "did you mean tiny?" in unknown.stderr) == (2, True)


def test_two_submits_with_one_id_are_one_run_where_they_ask_for_the_same(
    call: Call, project: Path
) -> None:
    words = ("submit", str(project), "--run-id", "r-1")
    answers = [json.loads(call(*words, "--set", "lr=0.2", "--json").stdout) for _ in range(2)]
    assert [each["is_new"] for each in answers] == [True, False]
    assert len(run_of("r-1").attempts) == 1


@pytest.mark.parametrize(
    ("changed", "there", "asked"),
    [
        (("--set", "lr=0.3"), "lr = 0.2", "lr = 0.3"),
        ((), "lr = 0.2", "lr = 0.1"),  # what is left out is asked for as well
        (("--set", "lr=0.2", "--ranks", "2"), "ranks = 1", "ranks = 2"),
    ],
)
def test_the_second_submit_of_an_id_is_refused_with_both_where_it_asks_for_something_else(
    call: Call, project: Path, changed: tuple[str, ...], there: str, asked: str
) -> None:
    words = ("submit", str(project), "--run-id", "r-1")
    call(*words, "--set", "lr=0.2")
    refused = call(*words, *changed)
    assert refused.exit_code == 2
    assert f"r-1 exists with {there}" in refused.stderr
    assert f"cannot be declared with {asked}" in refused.stderr


def test_the_second_submit_of_an_id_is_refused_where_its_code_is_another(
    call: Call, project: Path
) -> None:
    words = ("submit", str(project), "--run-id", "r-1")
    call(*words)
    (project / "train.py").write_text("print('bye')\n")
    refused = call(*words)
    assert (refused.exit_code, "code = runs/r-1/trainer/" in refused.stderr) == (2, True)


def test_wait_follows_the_run_and_ends_as_it_did(
    call: Call, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit_command.RunFollower, "to_the_end", ended)
    done = call("submit", str(project), "--run-id", "r-1", "--wait", "--json")
    assert (done.exit_code, json.loads(done.stdout)["state"]) == (1, "waiting")
    assert "r-1: nobody came" in done.stderr


def ended(_self: object) -> Followed:
    return Followed(state="waiting", is_drained=False, waited_for="nobody came")


@pytest.mark.parametrize(("daemon", "exit_code"), [("0.0.9", 2), ("0.1.9", 0), ("0.3.0", 0)])
def test_a_client_that_is_newer_than_the_daemon_declares_nothing_that_it_may_not_read(
    call: Call,
    home: Path,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    daemon: str,
    exit_code: int,
) -> None:
    call("projects", "list")
    call("submit", str(project), "--run-id", "r-0")
    monkeypatch.setattr("importlib.metadata.version", lambda _name: daemon)
    write_heartbeat(open_store(str(home / "store")), datetime.now(UTC), {})
    monkeypatch.setattr("importlib.metadata.version", lambda _name: "0.1.2")
    done = call("submit", str(project), "--run-id", "r-1")
    assert done.exit_code == exit_code, done.stderr
    assert ("is of version 0.0.9, and this is 0.1.2" in done.stderr) == (exit_code == 2)


def test_a_store_that_is_away_is_named_and_nothing_is_declared(
    call: Call, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKS_STORE", "/proc/nowhere/store")
    done = call("submit", str(project))
    assert (done.exit_code, "/proc/nowhere/store" in done.stderr) == (2, True)
