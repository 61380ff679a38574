"""`tracks checkpoints`: list, verify, collect, pin; as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Call, files_of
from tests.histories import History
from tests.stories import RUN_ID, Story
from tracks_dagster.checkpoints.effects.verification import Verified
from tracks_dagster.cli.data import checkpoint_upkeep
from tracks_dagster.settings import Settings
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.records import sha256_hex
from tracks_dagster.track.states.checkpoints import CheckpointRef, manifest_key, object_prefix
from tracks_dagster.track.track import log_key
from tracks_dagster.wiring import build


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


def test_the_list_says_why_each_checkpoint_is_kept(
    long_story: Story, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = json.loads(call("checkpoints", "list", RUN_ID, "--json").stdout)
    assert [row["step"] for row in rows] == [10, 20, 30, 40, 50]
    assert "number 1 of the last 3" in rows[-1]["why"]
    assert "not verified by a read yet" in rows[0]["why"][-1]
    monkeypatch.setenv("COLUMNS", "80")
    shown = call("checkpoints", "list", RUN_ID).stdout
    assert "not yet" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert "number 1 of the last 3" in shown  # in one line: a column of its own would be too narrow


def test_verify_records_what_it_read(long_story: Story, call: Call) -> None:
    assert call("checkpoints", "verify", RUN_ID, "--step", "20").exit_code == 0
    rows = json.loads(call("checkpoints", "list", RUN_ID, "--json").stdout)
    assert [row["verified_at"] is not None for row in rows] == [False, True, False, False, False]
    result = json.loads(call("checkpoints", "verify", "--json").stdout)
    assert [each["status"] for each in result] == ["verified"] * 5


def test_verify_exits_with_one_and_names_object_hashes_fallback_and_record(
    long_story: Story, call: Call, home: Path
) -> None:
    chunk = damage(home, long_story, -1)
    result = call("checkpoints", "verify", RUN_ID)
    assert result.exit_code == 1
    assert f"chunks/{chunk.name} has blake3" in result.stdout
    assert f"expected {chunk.name}" in result.stdout
    assert "falls back to step 40 of attempt 1" in result.stdout
    seq = len(long_story.history.records) + 4  # the four sound ones were read before
    assert f"Quarantined by record {seq}" in result.stdout


def test_a_checkpoint_that_rotted_since_it_was_verified_is_verified_no_longer(
    long_story: Story, call: Call, home: Path
) -> None:
    assert call("checkpoints", "verify", RUN_ID).exit_code == 0
    damage(home, long_story, -1)
    assert call("checkpoints", "verify", RUN_ID).exit_code == 1
    lines = call("checkpoints", "list", RUN_ID).stdout.splitlines()
    [rotten] = [line for line in lines if "quarantined" in line and "attempt" not in line]
    assert "no: in quarantine" in rotten
    assert " yes " not in rotten


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("verify", "--step", "10"), "need a RUN"),
        (("verify", RUN_ID, "--step", "11"), "it has: 10 (attempt 1)"),
        (("verify", RUN_ID, "--attempt", "7"), "attempts that have: 1"),
        (("gc", "no-such-run"), "no training run"),
        (("verify", "no-such-run"), "no training run"),
        (("save", RUN_ID), "no attempt that runs"),
        (("save", RUN_ID, "--wait", "0"), "more than 0"),
        (("pin", f"{RUN_ID}/a01", "--why", "x"), "write RUN@STEP"),
        (("pin", f"{RUN_ID}@11", "--why", "x"), "it has: 10 (attempt 1)"),
        (("pin", f"{RUN_ID}@10", "--why", " "), "why is empty"),
        (("unpin", f"{RUN_ID}@10", "--why", "x", "--by", "ann"), "it is held by: nobody"),
    ],
)
def test_wrong_use_is_reported_and_writes_nothing(
    arguments: tuple[str, ...], words: str, long_story: Story, call: Call, home: Path
) -> None:
    before = files_of(home / "store")
    result = call("checkpoints", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
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


@pytest.fixture
def bad_runs(long_story: Story, home: Path) -> list[str]:
    """Runs before and after the good one: a stray script, a broken track, another format."""
    (home / "store" / "runs" / "a-stray" / "trainer").mkdir(parents=True)
    (home / "store" / "runs" / "a-stray" / "trainer" / "0a.py").write_text("pass")
    History("b-broken").declare().open().write_to(long_story.store)
    log = home / "store" / log_key("runs/b-broken", 1)
    log.chmod(0o644)
    log.write_bytes(b"{}")
    foreign = long_story.store.get(manifest_key(long_story.history.state.checkpoints[0].ref))
    assert foreign is not None
    data = foreign.replace(b'"format":2', b'"format":99')
    history = History("z-foreign").declare().open().place().restore()
    prefix = object_prefix(AttemptRef("z-foreign", 1), history.launch_id, 20)
    ref = CheckpointRef("z-foreign", 1, 20, prefix, sha256_hex(data))
    long_story.store.put(manifest_key(ref), data)
    history.commit(20, ref=ref).write_to(long_story.store)
    return ["a-stray", "b-broken", "z-foreign"]


@pytest.mark.parametrize("command", ["verify", "gc"])
def test_a_run_that_is_broken_is_reported_and_stops_no_other(
    command: str, bad_runs: list[str], call: Call
) -> None:
    result = call("checkpoints", command)
    assert result.exit_code == 1
    for run_id in (*bad_runs, RUN_ID):
        assert run_id in result.stdout
    assert "no training run 'a-stray'" in result.stdout
    assert "did you mean a-stray" not in result.stdout
    _, _, others = result.stdout.partition("There are: ")[2].partition("\n")
    assert others.index("b-broken") < others.rindex(RUN_ID) < others.index("z-foreign")
    rows = json.loads(call("checkpoints", command, "--json").stdout)
    failed = [row["run_id"] for row in rows if row.get("status") == "failed"]
    assert failed[:2] == ["a-stray", "b-broken"]


def test_verify_prints_each_checkpoint_before_it_reads_the_next(
    long_story: Story, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = checkpoint_upkeep.verify, []

    def killed_in_the_third(*given: Any, **more: Any) -> Verified:
        calls.append(given)
        if len(calls) == 3:
            raise SystemExit(130)
        return real(*given, **more)

    monkeypatch.setattr(checkpoint_upkeep, "verify", killed_in_the_third)
    result = call("checkpoints", "verify", RUN_ID)
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["verified", "verified"]


def test_verify_says_of_a_checkpoint_that_was_deleted_meanwhile_that_it_is_deleted(
    long_story: Story, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(tracks: object, reader: object, ref: CheckpointRef, *, by: str) -> Verified:
        return Verified(ref=ref, total_bytes=None, problem=None, fallback=None, seq=None)

    monkeypatch.setattr(checkpoint_upkeep, "verify", gone)
    result = call("checkpoints", "verify", RUN_ID, "--step", "10", "--json")
    assert result.exit_code == 0
    assert [row["status"] for row in json.loads(result.stdout)] == ["deleted"]
    assert call("checkpoints", "verify", RUN_ID, "--step", "10").stdout.startswith("deleted ")


def test_a_checkpoint_is_named_in_every_way_that_names_one(long_story: Story, call: Call) -> None:
    sha256 = long_story.history.state.checkpoints[-1].ref.manifest_sha256
    for name in (f"{RUN_ID}@50", f"{RUN_ID}/a01@50", RUN_ID, sha256[:12]):
        pinned = call("checkpoints", "pin", name, "--why", "x")
        assert pinned.stdout.startswith(f"Step 50 of {RUN_ID}, attempt 1, pinned"), pinned.stderr
    refused = call("explain", f"{RUN_ID}@50")
    assert (refused.exit_code, f"tracks lineage {RUN_ID}@50" in refused.stderr) == (2, True)


def test_a_pin_is_listed_until_it_is_let_go(long_story: Story, call: Call) -> None:
    at = f"{RUN_ID}@10"
    pinned = call("checkpoints", "pin", at, "--why", "a paper", "--by", "ann")
    assert pinned.exit_code == 0, pinned.stderr
    assert "pinned by hold:ann" in pinned.stdout
    assert pins_of_the_first(call) == ["hold:ann"]
    result = call("checkpoints", "unpin", at, "--why", "done", "--by", "ann", "--json")
    assert json.loads(result.stdout)["status"] == "unpinned"
    assert pins_of_the_first(call) == []


def pins_of_the_first(call: Call) -> object:
    return json.loads(call("checkpoints", "list", RUN_ID, "--json").stdout)[0]["pins"]
