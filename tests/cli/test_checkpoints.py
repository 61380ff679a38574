"""`tracks checkpoints`: list, verify, collect, pin; as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Call, files_of
from tests.stories import RUN_ID, Story
from tracks_dagster.wiring import Settings, build


@pytest.fixture
def long_story(home: Path) -> Story:
    """A run with five checkpoints, whose attempt was preempted."""
    app = build(Settings.from_environment())
    story = Story(app.store)
    story.attempt("preempted", last_step=53, commits=(10, 20, 30, 40, 50))
    story.write_tracks()
    app.projector.scan()
    return story


def damage(home: Path, story: Story, index: int) -> Path:
    prefix = story.history.state.checkpoints[index].ref.object_prefix
    chunk = next((home / "store" / prefix).rglob("chunks/*"))
    chunk.chmod(0o644)
    chunk.write_bytes(b"other bytes")
    return chunk


def test_the_list_says_why_each_checkpoint_is_kept(long_story: Story, call: Call) -> None:
    rows = json.loads(call("checkpoints", "list", RUN_ID, "--json").stdout)
    assert [row["step"] for row in rows] == [10, 20, 30, 40, 50]
    assert "number 1 of the last 3" in rows[-1]["why"]
    assert "not verified by a read yet" in rows[0]["why"][-1]
    assert "not yet" in call("checkpoints", "list", RUN_ID).stdout


def test_verify_records_what_it_read(long_story: Story, call: Call) -> None:
    assert call("checkpoints", "verify", RUN_ID, "--step", "20").exit_code == 0
    rows = json.loads(call("checkpoints", "list", RUN_ID, "--json").stdout)
    assert [row["verified_at"] is not None for row in rows] == [False, True, False, False, False]
    told = json.loads(call("checkpoints", "verify", "--json").stdout)
    assert [each["status"] for each in told] == ["verified"] * 5


def test_verify_exits_with_one_and_names_object_hashes_fallback_and_record(
    long_story: Story, call: Call, home: Path
) -> None:
    chunk = damage(home, long_story, -1)
    told = call("checkpoints", "verify", RUN_ID)
    assert told.exit_code == 1
    assert f"chunks/{chunk.name} has blake3" in told.stdout
    assert f"expected {chunk.name}" in told.stdout
    assert "falls back to step 40 of attempt 1" in told.stdout
    seq = len(long_story.history.records) + 4  # the four sound ones were read before
    assert f"Quarantined by record {seq}" in told.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("verify", "--step", "10"), "need a RUN"),
        (("verify", RUN_ID, "--step", "11"), "it has: 10 (attempt 1)"),
        (("verify", RUN_ID, "--attempt", "7"), "attempts that have: 1"),
        (("gc", "no-such-run"), "no training run"),
        (("pin", RUN_ID, "--why", "x"), "write RUN@STEP"),
        (("pin", f"{RUN_ID}@11", "--why", "x"), "it has: 10 (attempt 1)"),
        (("pin", f"{RUN_ID}@10", "--why", " "), "why is empty"),
        (("unpin", f"{RUN_ID}@10", "--why", "x", "--by", "ann"), "it is held by: nobody"),
    ],
)
def test_wrong_use_is_told_and_writes_nothing(
    arguments: tuple[str, ...], words: str, long_story: Story, call: Call, home: Path
) -> None:
    before = files_of(home / "store")
    told = call("checkpoints", *arguments)
    assert told.exit_code == 2
    assert words in told.stderr
    assert files_of(home / "store") == before


def test_gc_does_what_its_dry_run_said(long_story: Story, call: Call, home: Path) -> None:
    before = files_of(home)
    dry = json.loads(call("checkpoints", "gc", RUN_ID, "--dry-run", "--json").stdout)[0]
    assert files_of(home) == before
    text = call("checkpoints", "gc", "--dry-run").stdout
    assert "2 would be superseded" in text
    assert "kept: step 50 of attempt 1: number 1 of the last 3" in text
    done = json.loads(call("checkpoints", "gc", RUN_ID, "--json").stdout)[0]
    assert (dry["dry_run"], done["dry_run"]) == (True, False)
    for name in ("superseded", "deleted", "freed_bytes", "waiting", "leftover_count"):
        assert dry[name] == done[name]
    assert [each["ref"]["step"] for each in done["superseded"]] == [10, 20]


def test_gc_exits_with_one_when_the_newest_is_corrupt(
    long_story: Story, call: Call, home: Path
) -> None:
    damage(home, long_story, -1)
    dry = call("checkpoints", "gc", RUN_ID, "--dry-run")
    assert dry.exit_code == 1
    assert "would be quarantined: step 50" in dry.stdout
    assert call("checkpoints", "gc", RUN_ID).exit_code == 1


def test_a_pin_holds_until_it_is_let_go(long_story: Story, call: Call) -> None:
    at = f"{RUN_ID}@10"
    pinned = call("checkpoints", "pin", at, "--why", "a paper", "--by", "ann")
    assert pinned.exit_code == 0, pinned.stderr
    assert "pinned by hold:ann" in pinned.stdout
    done = json.loads(call("checkpoints", "gc", RUN_ID, "--json").stdout)[0]
    assert [each["ref"]["step"] for each in done["superseded"]] == [20]
    rows = json.loads(call("checkpoints", "list", RUN_ID, "--json").stdout)
    assert rows[0]["pins"] == ["hold:ann"]
    told = call("checkpoints", "unpin", at, "--why", "done", "--by", "ann", "--json")
    assert json.loads(told.stdout)["status"] == "unpinned"


def test_a_rule_that_cannot_be_kept_to_is_refused_where_the_run_is_declared(
    call: Call, home: Path
) -> None:
    told = call("run", "--keep-last", "0")
    assert told.exit_code == 2
    assert "keep_last is 0" in told.stderr
    assert not home.exists()
