"""Notes, and the search that finds what anybody said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.stories import RUN_ID, Story
from tracks_dagster.reading import open_tracks_to_read
from tracks_dagster.settings import Settings


def test_a_note_of_an_attempt_is_found_and_explained(story: Story, call: Call) -> None:
    result = call("note", f"{RUN_ID}/a02", "Shard 7 has longer rows.", "--by", "ann")
    seq = len(story.history.records)
    assert result.stdout == f"Noted as record {seq} of {RUN_ID}/a02.\n"
    found = call("search", "longer rows")
    assert found.exit_code == 0
    assert f"{RUN_ID}/a02  record {seq} (note) by ann\n  Shard 7 has longer rows." in found.stdout
    assert f"tracks explain {RUN_ID}/a02" in found.stdout
    assert "Shard 7 has longer rows." in call("explain", f"{RUN_ID}/a02").stdout


def test_what_looks_like_a_password_never_reaches_the_record(
    story: Story, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEAM_TOKEN", "hunter2-of-the-team")
    call("note", RUN_ID, "It logged in with hunter2-of-the-team at postgresql://ann:pass99@db.")
    note = open_tracks_to_read(Settings.from_environment()).run(RUN_ID).notes[-1]
    assert "hunter2" not in note.body.text
    assert "pass99" not in note.body.text
    assert call("search", "hunter2").exit_code == 1
    assert "hunter2" not in call("search", "logged").stdout


def test_a_search_as_json_names_record_track_and_command(story: Story, call: Call) -> None:
    result = json.loads(call("search", "gpu_oom", "--json").stdout)
    [hit] = result["hits"]
    assert hit["kind"] == "attempt_ended"
    assert hit["where"] == f"runs/{RUN_ID}"
    assert story.history.records[hit["seq"]].kind == hit["kind"]
    assert result["is_cut"] is False


def test_words_may_come_as_one_argument_or_several(story: Story, call: Call) -> None:
    one = call("search", "oom story").stdout
    assert call("search", "oom", "story").stdout == one
    assert call("search", '"as the story"').exit_code == 0
    assert call("search", "as the story").exit_code == 0
    assert call("search", "wants", "the as").exit_code == 1  # an argument with spaces is a phrase


def test_runs_are_found_by_their_id_and_what_they_were_declared_with(
    story: Story, call: Call
) -> None:
    """Four runs were called lr-…, and `search lr` found nothing."""
    for text in ("gpt-sto", "twice the accumulation", "micro_batch"):
        found = call("search", text)
        assert (found.exit_code, found.stdout.startswith("gpt-story (gpt, ")) == (0, True), text
    [row] = json.loads(call("search", "gpt-story", "--json").stdout)["runs"]
    assert row["run_id"] == "gpt-story"


def test_nothing_found_is_bad_news_and_says_what_else_can_be_searched(
    story: Story, call: Call
) -> None:
    result = call("search", "traceback")
    assert result.exit_code == 1
    assert "--deep" in result.stdout
    deep = call("search", "traceback", "--deep")
    assert deep.exit_code == 0
    assert "The evidence of 3 ended attempts was read." in deep.stdout


def test_a_search_is_narrowed_and_cut(story: Story, call: Call) -> None:
    assert call("search", "attempt", "--last", "1d").exit_code == 1  # the story is older
    assert call("search", "oom", "--run", f"{RUN_ID}/a01").exit_code == 1
    assert call("search", "oom", "--run", f"{RUN_ID}/a02").exit_code == 0
    assert "There is more" in call("search", "attempt", "--limit", "1").stdout


@pytest.mark.parametrize("command", ["search", "goodput", "explain", "simulate"])
def test_a_duration_is_taken_in_every_unit_that_the_help_names(
    command: str, story: Story, call: Call
) -> None:
    help_text = " ".join(call(command, "--help").stdout.split())
    assert "s, min, h, d, w" in help_text
    arguments = {"search": ("oom",), "explain": ("--random-failed",)}.get(command, ())
    for unit in ("s", "min", "h", "d", "w"):
        result = call(command, *arguments, "--last", f"1{unit}")
        assert "write a number" not in result.stderr
    assert "(s, min, h, d, w)" in call(command, *arguments, "--last", "30m").stderr


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("…",), "no word to search for"),
        (("oom", "--last", "soon"), "--last"),
        (("oom", "--run", f"{RUN_ID[:-1]}"), f"did you mean {RUN_ID}"),
        (("oom", "--run", "Not a run"), "a-z, 0-9"),
    ],
)
def test_a_search_that_cannot_be_made_says_how(
    arguments: tuple[str, ...], hint: str, story: Story, call: Call
) -> None:
    result = call("search", *arguments)
    assert result.exit_code == 2
    assert hint in result.stderr


def test_a_stop_and_a_retry_demand_words_and_are_found_by_them(
    home: Path, story: Story, call: Call
) -> None:
    for command in (("stop", RUN_ID), ("retry", RUN_ID), ("drain", RUN_ID)):
        assert call(*command).exit_code == 2
        assert call(*command, "--why", "  ").exit_code == 2
    assert call("run", "--intent", "  ").exit_code == 2
