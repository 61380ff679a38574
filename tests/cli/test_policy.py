"""`tracks policy` shows what holds, and refuses a wrong file with every error and its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.histories import History
from tests.stories import RUN_ID, Story
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.settings import Settings
from tracks_dagster.wiring import build

GOOD = "reasons: {node_failure: {count: 9, window: 2d}}\n"
BAD = "reasons:\n  node_failure: {count: -1}\n  hang: {window: 24}\nlimit: {}\n"


@pytest.fixture(autouse=True)
def no_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRACKS_POLICY", raising=False)


def test_without_a_file_it_is_the_default_and_nothing_is_made(call: Call, home: Path) -> None:
    shown = call("policy")
    assert shown.exit_code == 0
    assert "as shipped" in shown.stdout
    assert "5 in 7 d" in shown.stdout
    assert "a storm in a pool: 10 ends" in shown.stdout
    assert not home.exists()


def test_a_file_in_the_home_or_where_the_variable_says_changes_it(
    call: Call, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir()
    (home / "policy.yaml").write_text(GOOD)
    result = json.loads(call("policy", "--json").stdout)
    assert result["changed_reasons"] == ["node_failure"]
    assert result["file"] == str(home / "policy.yaml")
    assert result["version"] != DEFAULT_POLICY.version
    elsewhere = tmp_path / "other.yaml"
    elsewhere.write_text("storm: {ends: none}\n")
    monkeypatch.setenv("TRACKS_POLICY", str(elsewhere))
    result = json.loads(call("policy", "--json").stdout)
    assert (result["storm"]["ends"], result["changed_reasons"]) == (None, [])


def test_a_file_can_be_tried_before_it_holds(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD)
    shown = call("policy", "--check", str(path))
    assert shown.exit_code == 0
    assert "9 in 2 d" in shown.stdout


def test_the_classes_and_the_rules_of_the_queue_are_shown(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("classes: {sweep: {devices: 4}}\nteams: {vision: {devices: 8, share: 2}}\n")
    shown = call("policy", "--check", str(path)).stdout
    changed = [line.split() for line in shown.splitlines() if line.startswith("*")]
    assert [line[:3] for line in changed] == [["*", "sweep", "200"]]
    assert "class sweep: 4 devices" in shown
    assert "the order: priority: by class" in shown
    assert "team vision: 8 devices; share 2" in shown


def test_a_policy_that_can_never_start_something_is_bad_news(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("classes: {distributed: {devices_per_owner: 1}}\n")
    checked = call("policy", "--check", str(path))
    assert checked.exit_code == 1
    assert "IMPOSSIBLE class distributed: a gang of 2 ranks never starts" in checked.stdout
    result = json.loads(call("policy", "--check", str(path), "--json").stdout)
    assert len(result["impossible"]) == 1


@pytest.mark.parametrize(("devices", "exit_code"), [("2", 1), ("3", 0)])
def test_what_is_kept_for_a_class_is_weighed_with_the_devices_of_this_machine(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: str, exit_code: int
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("classes: {eval: {reserved: 1}}\n")
    monkeypatch.setenv("TRACKS_DEVICES", devices)
    checked = call("policy", "--check", str(path))
    assert checked.exit_code == exit_code, checked.stdout
    kept = "needs 2 devices; of 2 here the policy keeps 1 for class eval"
    assert (kept in checked.stdout) is (exit_code == 1)


def test_a_file_that_is_not_text_is_refused_with_its_line(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"reasons:\n  hang: {count: 3} # \xe4\n")
    refused = call("policy", "--check", str(path))
    assert refused.exit_code == 2
    assert f"{path} is not UTF-8: line 2 is not text." in refused.stderr


@pytest.mark.parametrize("variable", ["TRACKS_POLICY", "TRACKS_RULES"])
def test_a_broken_file_takes_no_command_away_that_does_not_need_it(
    story: Story, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    app = build(Settings.from_environment())
    History("r-1").declare().open().write_to(app.store)
    app.projector.scan()
    path = tmp_path / "broken.yaml"
    path.write_bytes(b"reasons: {hang: {cuont: \xff}}\n")
    monkeypatch.setenv(variable, str(path))
    for command in (
        ("status",),
        ("explain", RUN_ID),
        ("explain", f"{RUN_ID}/a01"),
        ("report", RUN_ID),
        ("note", RUN_ID, "still here"),
        ("stop", "r-1", "--why", "enough"),
    ):
        done = call(*command)
        assert done.exit_code == 0, (command, done.output)
    if variable == "TRACKS_POLICY":
        assert call("policy").exit_code == 2


def test_a_wrong_file_is_refused_with_every_error_and_its_line(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(BAD)
    refused = call("policy", "--check", str(path))
    assert refused.exit_code == 2
    assert "3 errors" in refused.stderr
    assert "line 2: reasons.node_failure.count: -1 is not a count" in refused.stderr
    assert "line 3: reasons.hang.window: 24 has no unit" in refused.stderr
    assert "line 4: limit: 'limit' is not a key; did you mean limits?" in refused.stderr


def test_status_says_why_nothing_is_decided_with_a_wrong_file(call: Call, home: Path) -> None:
    home.mkdir()
    (home / "policy.yaml").write_text(BAD)
    shown = call("status")
    assert (shown.exit_code, "No training run yet" in shown.stdout) == (0, True)
    assert "policy.yaml cannot be used; it has 3 errors:\n  line 2: " in shown.stderr
    assert "Until it is mended no run is declared" in shown.stderr


@pytest.mark.parametrize("arguments", [("policy",), ("retry", "r-1", "--why", "x")])
def test_no_command_that_decides_works_with_a_wrong_file(
    arguments: tuple[str, ...],
    call: Call,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(BAD)
    monkeypatch.setenv("TRACKS_POLICY", str(path))
    refused = call(*arguments)
    assert refused.exit_code == 2
    assert "3 errors" in refused.stderr


def test_a_file_that_is_named_and_is_not_there_is_refused(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKS_POLICY", str(tmp_path / "none.yaml"))
    assert call("policy").exit_code == 2
    assert call("policy", "--check", "no-such.yaml").exit_code == 2
