"""`tracks simulate --schedule`: a queue from a file, made, or from the ledger, and its picture."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Call, files_of
from tests.stories import Story

QUEUE = "name,at,devices,runs,class,team,saves_every\nbig,0s,8,2h,distributed,ann,30min\n"
LONG_AGO = "3650d"


@pytest.fixture
def queue(tmp_path: Path) -> Callable[[str], str]:
    """Writes a CSV file."""

    def write(text: str) -> str:
        path = tmp_path / "queue.csv"
        path.write_text(text)
        return str(path)

    return write


def test_policies_stand_side_by_side_in_80_columns_and_need_no_home(
    home: Path, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    policy = tmp_path / "policy.yaml"
    policy.write_text("scheduling:\n  order: fair\n")
    found = call("simulate", "--schedule", "eight-nodes", "--policy", str(policy))
    assert found.exit_code == 0, found.stderr
    lines = found.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    rows = {line.split("  ")[0]: line.split() for line in reversed(lines)}  # the first of a name
    assert [*rows["FIFO"][1:5]] == ["7.0", "h", "10", "h"]
    assert {"FIFO", "backfill", "fair share", "priority", "preemption", "yours"} <= rows.keys()
    assert rows["eval"][:4] == ["eval", "1", "10", "h"]  # of one, 95 % waited 10 h under FIFO
    assert "held without work: 0 s at most in one go (bound 0 s: to start and to end)" in lines
    assert not home.exists()


def test_what_is_drawn_says_how_far_recurrence_was_off(call: Call) -> None:
    given = (
        "simulate",
        "--schedule",
        "acme",
        "--nodes",
        "2",
        "--submissions",
        "100",
        "--seed",
        "3",
    )
    text, found = call(*given), json.loads(call(*given, "--json").stdout)
    assert (found["workload"], found["submissions"], found["devices"]) == ("acme", 100, 16)
    assert found["parameters"] == {
        "start_s": 60.0,
        "save_s": 10.0,
        "end_s": 5.0,
        "grace_s": None,
        "seed": 3,
    }
    for row in found["rows"]:
        assert 0 < row["working"] + row["starting"] <= 1
        assert row["idle_held_s"] <= found["idle_held_s_max"] == 65.0
        assert next(each["name"] for each in row["classes"]) == "all"
        assert sum(each["submissions"] for each in row["classes"][1:]) == 100
    guessed = found["rows"][0]["prediction"]
    assert f"recurrence predicted {guessed['predicted']} of 100: half within" in text.stdout
    assert "* is the policy of this home: preemption" in text.stdout


def test_a_file_is_played_and_what_is_wrong_in_it_is_reported_by_line(
    queue: Callable[[str], str], call: Call
) -> None:
    path = queue(f"{QUEUE}small,1h,0.5,5min,eval,,\n")
    given = ("--nodes", "1", "--devices-per-node", "8", "--restart", "0s", "--json")
    found = json.loads(call("simulate", "--schedule", path, *given).stdout)
    fifo = found["rows"][0]["classes"]
    assert [each["name"] for each in fifo] == ["all", "eval", "distributed"]
    # after 2 h of work; the devices are free 5 s later
    assert fifo[1]["wait"]["max_s"] == 3605.0
    wrong = call("simulate", "--schedule", queue(QUEUE.replace("8,", "65,")))
    assert wrong.exit_code == 2
    assert "queue.csv has 1 error" in wrong.stderr
    assert "line 2: devices: 65, and there are 64" in wrong.stderr


def test_the_ledgers_own_submissions_are_played_and_nothing_is_written(
    story: Story, home: Path, call: Call
) -> None:
    before = files_of(home)
    found = json.loads(
        call("simulate", "--schedule", "ledger", "--last", LONG_AGO, "--json").stdout
    )
    assert found["nodes"] == 1
    assert "Every rank takes one device" in " ".join(found["assumptions"])
    assert {each["name"] for each in found["rows"][0]["classes"]} == {"all", "single", "eval"}
    assert found["rows"][0]["moves"] == 0
    assert files_of(home) == before


@pytest.mark.parametrize("name", ["queue.svg", "queue.html"])
def test_a_picture_is_a_file_of_its_own_or_in_a_page(name: str, call: Call, tmp_path: Path) -> None:
    path = tmp_path / name
    found = call("simulate", "--schedule", "eight-nodes", "--picture", str(path))
    assert found.exit_code == 0, found.stderr
    assert f"picture: {path}" in found.stdout
    text = path.read_text()
    assert text.count("<svg") == 1
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
    assert ("<td>FIFO" in text) is (name == "queue.html")
    assert "--ground: #fcfcfa" in text  # the colours that its rules name
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            ("--schedule", "nowhere"),
            "nowhere cannot be read (No such file or directory). Give a CSV",
        ),
        (("--schedule", "/"), "/ cannot be read (Is a directory)"),
        (("--schedule", "eight-nodes", "--nodes", "4"), "leave their numbers out"),
        (
            ("--schedule", "eight-nodes", "--submissions", "4"),
            "is for what is drawn: generated, pai",
        ),
        (("--schedule", "acme", "--trace", "t.json"), "--schedule plays a queue"),
        (("--schedule", "acme", "--every", "5min"), "--schedule plays a queue"),
        (("--schedule", "acme", "--picture", "p.png"), "its name ends in .svg or .html"),
        (("--schedule", "eight-nodes", "--picture", "/dev/null/p.svg"), "Cannot write the picture"),
        (("--schedule", "eight-nodes", "--grace", "30"), "--grace: '30' has no unit"),
        (("--schedule", "ledger"), "ledger"),
        (("--picture", "p.svg"), "are for a queue: add --schedule"),
    ],
)
def test_wrong_use_is_reported(given: tuple[str, ...], words: str, call: Call) -> None:
    found = call("simulate", *given)
    assert found.exit_code == 2
    assert words in found.stderr
