"""`tracks curves`: a table to look at, points to draw, and each kept step once."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Call, files_of
from tests.stories import RUN_ID, Story
from tracks_dagster.track.records import Kind
from tracks_dagster.wings.watch.edge import curves as curves_command


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.usefixtures("story")
def test_the_csv_has_each_kept_step_once(call: Call) -> None:
    shown = call("curves", RUN_ID, "--csv")
    assert (shown.exit_code, shown.stderr) == (0, "")
    found = rows(shown.stdout)
    assert list(found[0]) == ["step", "attempt", "at", "loss", "step_s", "data_s"]
    assert [int(row["step"]) for row in found] == list(range(1, 41))
    assert [float(row["loss"]) for row in found] == [5.0 / step for step in range(1, 41)]
    assert [row["attempt"] for row in found] == ["1"] * 20 + ["2"] * 10 + ["3"] * 10
    only = call("curves", RUN_ID, "data_s", "--csv").stdout
    assert only.splitlines()[0] == "step,attempt,at,data_s"


@pytest.mark.usefixtures("story")
def test_the_json_has_what_was_lost_too_and_what_happened(call: Call) -> None:
    found = json.loads(call("curves", RUN_ID, "loss", "--json", "--by", "hours").stdout)
    assert (found["by"], found["x_label"]) == ("hours", "hours of training")
    (loss,) = found["metrics"]
    kinds = [(s["attempt_id"], s["is_kept"], len(s["points"])) for s in loss["series"]]
    assert kinds == [(1, True, 20), (1, False, 3), (2, True, 10), (3, True, 10)]
    assert found["point"] == ["step", "x", "value", "at"]
    step, x, value, at = loss["series"][0]["points"][1]
    assert (step, value, at) == (2, 2.5, "2026-01-31T02:00:35.000000Z")
    assert x == pytest.approx(2 * 0.4 / 3600)  # the story's journals have no sums: steps alone
    assert [mark["kind"] for mark in found["marks"]].count("commit") == 4


@pytest.mark.usefixtures("story")
def test_the_table_shows_each_metric_at_a_glance(call: Call) -> None:
    shown = call("curves", RUN_ID)
    assert shown.exit_code == 0
    head, loss, *_ = [line.split() for line in shown.stdout.splitlines()]
    assert head == ["metric", "newest", "smallest", "largest", "kept", "lost", "step"]
    assert loss[:6] == ["loss", "0.125", "0.125", "5", "40", "3"]
    assert loss[6][0] == "█"
    assert loss[6][-1] == "▁"


@pytest.mark.usefixtures("story")
def test_the_table_has_a_line_for_each_metric_on_a_terminal_of_80_columns(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, *rows = call("curves", RUN_ID, "loss").stdout.splitlines()
    assert [row.split()[0] for row in rows] == ["loss"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["los"], "did you mean loss? it has: loss, step_s, data_s."),
        (["--csv", "--json"], "Choose --csv or --json."),
        (["-f"], "choose --csv, --json or a tracker with it"),
        (["--csv", "--by", "hours"], "A row is a step"),
    ],
)
@pytest.mark.usefixtures("story")
def test_what_cannot_be_shown_is_refused_in_words(
    call: Call, arguments: list[str], words: str
) -> None:
    refused = call("curves", RUN_ID, *arguments)
    assert refused.exit_code == 2
    assert words in refused.stderr


def test_a_run_without_a_step_says_so(call: Call, story: Story) -> None:
    Story(story.store, "fresh").write_tracks()
    shown = call("curves", "fresh")
    assert shown.exit_code == 1
    assert "No step of fresh is in the journals yet." in shown.stderr


def test_lines_that_never_came_are_counted(call: Call, story: Story) -> None:
    (key,) = [k for k in story.store.list(f"runs/{RUN_ID}/attempts/2/") if "/journal/" in k]
    data = story.store.get(key)
    assert data is not None
    story.store.put(key, b"\n".join(data.splitlines()[:4]) + b"\n")
    shown = call("curves", RUN_ID, "--csv")
    assert len(rows(shown.stdout)) == 34
    assert f"6 kept steps of {RUN_ID} have no line in its journals" in shown.stderr


def test_an_exported_run_and_a_read_only_home_are_read_too(
    call: Call, story: Story, home: Path, tmp_path: Path
) -> None:
    before = files_of(home)
    here = call("curves", RUN_ID, "--csv").stdout
    assert files_of(home) == before  # a reader makes no cache
    archive = tmp_path / "run.tar.gz"
    assert call("export", RUN_ID, str(archive)).exit_code == 0
    assert call("curves", RUN_ID, "--csv", "--archive", str(archive)).stdout == here


@pytest.fixture
def growing(story: Story) -> Story:
    """Another run in that home, whose first attempt trains."""
    run = Story(story.store, "growing")
    run.begin()
    return run.write_tracks()


def play(run: Story, patch: pytest.MonkeyPatch, *turns: Callable[[], object]) -> None:
    """Let the run take a turn whenever the command sleeps."""
    left = iter(turns)

    def sleep(seconds: float) -> None:
        next(left)()
        run.write_tracks()

    patch.setattr(curves_command.time, "sleep", sleep)


def test_following_prints_steps_once_they_are_in_a_checkpoint(
    call: Call, growing: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    def preempted() -> None:
        growing.ship(range(1, 24))
        growing.commit(20)
        growing.end("preempted", last_step=23)

    def finished() -> None:
        growing.attempt("completed", last_step=30, commits=(30,))
        growing.history.finish()

    play(
        growing,
        monkeypatch,
        lambda: growing.ship(range(1, 8)),  # nothing is safe yet
        lambda: growing.commit(5),
        preempted,
        finished,
    )
    found = rows(call("curves", "growing", "loss", "--csv", "-f").stdout)
    assert [int(row["step"]) for row in found] == list(range(1, 31))
    assert [row["attempt"] for row in found] == ["1"] * 20 + ["2"] * 10


def test_following_says_once_what_the_run_waits_for(
    call: Call, growing: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    def preempted() -> None:
        growing.commit(20)
        growing.end("preempted", last_step=23)

    def finished() -> None:
        growing.attempt("completed", last_step=30, commits=(30,))
        growing.history.finish()

    play(growing, monkeypatch, preempted, lambda: None, lambda: None, finished)
    shown = call("curves", "growing", "loss", "--csv", "-f")
    assert shown.stderr.count("growing: waiting: no daemon") == 1, shown.stderr


def test_following_says_that_a_rollback_took_steps_back(
    call: Call, growing: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    def began() -> None:
        growing.ship(range(1, 21))
        growing.commit(10)
        growing.commit(20)

    def rolled_back() -> None:
        growing.end("loss_divergence", last_step=20)
        newest = growing.history.state.checkpoints[-1].ref
        growing.history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, newest)

    def finished() -> None:
        growing.attempt("completed", last_step=12, commits=(12,))
        growing.history.finish()

    play(growing, monkeypatch, began, rolled_back, finished)
    lines = call("curves", "growing", "loss", "--json", "-f").stdout.splitlines()
    found = [json.loads(line) for line in lines]
    steps = [line.get("step", f"back to {line.get('rolled_back_to')}") for line in found]
    assert steps == [*range(1, 21), "back to 10", 11, 12]
