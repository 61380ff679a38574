"""`tracks snapshots`: a person quarantines a snapshot, sees what used it, and releases it."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.bodies import BEGIN
from tests.cli.conftest import Call
from tests.histories import History
from tests.stories import RUN_ID, Story
from tracks_dagster.cli import main
from tracks_dagster.settings import Settings
from tracks_dagster.track.bodies import SnapshotRef
from tracks_dagster.track.records import Kind
from tracks_dagster.wiring import build


def trained_on() -> tuple[str, str]:
    """The dataset of the story, and the id of the snapshot that it trained on."""
    snapshot = build(Settings.from_environment()).tracks.run(RUN_ID).declared.snapshot
    return snapshot.dataset, snapshot.snapshot_id


def kinds(dataset: str) -> list[Kind]:
    tracks = build(Settings.from_environment()).tracks
    return [record.kind for record in tracks.records(f"datasets/{dataset}")]


def test_a_snapshot_is_quarantined_once_and_what_used_it_is_named(story: Story, call: Call) -> None:
    dataset, snapshot_id = trained_on()
    result = call(
        "snapshots", "quarantine", dataset, snapshot_id[:8], "--why", "rows of another year"
    )
    assert result.exit_code == 0, result.output
    assert f"It was used by 1 run ({RUN_ID})" in result.stdout
    again = call("snapshots", "quarantine", dataset, snapshot_id, "--why", "as before", "--json")
    value = json.loads(again.stdout)
    assert (value["status"], value["seq"]) == ("quarantined", None)
    assert value["consumers"]["attempt_count"] == len(story.history.state.attempts)
    assert kinds(dataset).count(Kind.SNAPSHOT_QUARANTINED) == 1


def test_it_is_listed_with_its_reason_until_it_is_released(story: Story, call: Call) -> None:
    dataset, snapshot_id = trained_on()
    call("snapshots", "quarantine", dataset, snapshot_id, "--why", "rows of another year")
    rows = json.loads(call("snapshots", "list", dataset, "--json").stdout)
    [row] = [row for row in rows if row["snapshot_id"] == snapshot_id]
    assert (row["status"], row["quarantined_why"]) == ("quarantined", "rows of another year")
    assert "rows of another year" in call("snapshots", "list").stdout
    assert call("snapshots", "release", dataset, snapshot_id, "--why", "looked at").exit_code == 0
    rows = json.loads(call("snapshots", "list", dataset, "--json").stdout)
    assert {row["status"] for row in rows} == {"usable"}


def test_a_snapshot_is_listed_with_what_its_newest_kitchen_sink_found(
    story: Story, call: Call
) -> None:
    dataset, snapshot_id = trained_on()
    app = build(Settings.from_environment())
    snapshot = SnapshotRef(dataset=dataset, snapshot_id=snapshot_id)
    for run_id, begin in (("ks-1", BEGIN), ("ks-2", BEGIN + timedelta(days=1))):
        ran = History(run_id, begin=begin).declare(stage="kitchen_sink", snapshot=snapshot)
        ran.open().place().restore().commit(40).end(last_step=40).finish()
        if run_id == "ks-2":
            ran.judge(stage="kitchen_sink", passed=False, why="it read 960 samples of 1000")
        ran.write_to(app.store)
    app.projector.scan()
    rows = json.loads(call("snapshots", "list", "--json").stdout)
    [row] = [row for row in rows if row["snapshot_id"] == snapshot_id]
    shown = (row["kitchen_sink"], row["kitchen_sink_state"], row["kitchen_sink_why"])
    assert shown == ("ks-2", "did not pass", "it read 960 samples of 1000")
    assert {row["kitchen_sink"] for row in rows} == {"ks-2", None}
    assert "ks-2: did not pass" in call("snapshots", "list").stdout


def test_what_is_not_there_is_reported(story: Story, call: Call) -> None:
    dataset, _ = trained_on()
    for arguments, says in (
        (("birds", "abcdef"), "There is no dataset 'birds'"),
        ((dataset, "ffffffff"), "There is no snapshot 'ffffffff'"),
        ((dataset, "ff"), "too short"),
    ):
        result = call("snapshots", "quarantine", *arguments, "--why", "x")
        assert result.exit_code in (1, 2)
        assert says in result.stderr
    assert "There is no dataset 'birds'" in call("snapshots", "list", "birds").stderr
    result = call("snapshots", "list", f"{dataset}s")
    assert f"did you mean {dataset}" in result.stderr


def test_a_run_on_a_snapshot_in_quarantine_is_refused_by_its_name_with_what_releases_it(
    story: Story, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracks_dagster.cli.start.snapshots._materialize", lambda *_, **__: None)
    dataset, snapshot_id = trained_on()
    call("snapshots", "quarantine", dataset, snapshot_id, "--why", "labels off")
    result = call("run", "--snapshot", snapshot_id, "--steps", "1", "--intent", "a try")
    assert result.exit_code == 2
    assert f"Snapshot {snapshot_id} of {dataset} is quarantined (labels off)" in result.stderr
    assert f"`tracks release snapshot:{dataset}@{snapshot_id[:12]}" in result.stderr


def test_files_of_ones_own_are_added_listed_and_found_by_sql(
    story: Story, call: Call, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "train.bin").write_bytes(b"abc")
    result = call("snapshots", "add", "mine", str(tmp_path / "in"))
    assert result.exit_code == 0, result.output
    assert result.stdout.endswith("of mine: 1 file, 3 bytes; 3 bytes were new.\n")
    again = json.loads(
        call("snapshots", "add", "mine", str(tmp_path / "in"), "--in-place", "--json").stdout
    )
    assert (again["is_new"], again["snapshot"]["in_place"]) == (True, str(tmp_path / "in"))
    rows = json.loads(call("snapshots", "list", "mine", "--json").stdout)
    assert [(row["row_count"], row["file_count"]) for row in rows] == [(None, 1), (None, 1)]
    result = call("snapshots", "add", "mine", str(tmp_path / "nowhere"))
    assert result.exit_code == 2
    assert "There is no file or folder" in result.stderr


def test_the_checks_of_one_snapshot_are_those_of_the_next(
    story: Story, call: Call, tmp_path: Path
) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    for folder, text in ((good, "abc"), (bad, "")):
        folder.mkdir()
        (folder / "train.txt").write_text(text)
        (folder / "second.txt").write_text("abc")
    checks = tmp_path / "checks.py"
    checks.write_text("def check_size(folder):\n    assert (folder / 'train.txt').stat().st_size\n")
    assert call("snapshots", "add", "mine", str(good), "--checks", str(checks)).exit_code == 0
    refused = call("snapshots", "add", "mine", str(bad))
    assert (refused.exit_code, "check_size" in refused.stderr) == (2, True)
    assert "--no-checks" in refused.stderr
    assert call("snapshots", "add", "mine", str(bad), "--no-checks").exit_code == 0
    # A snapshot that somebody let in unchecked does not switch the checks off.
    (bad / "second.txt").write_text("d")
    assert call("snapshots", "add", "mine", str(bad)).exit_code == 2
    both = call("snapshots", "add", "mine", str(good), "--no-checks", "--checks", str(checks))
    assert "contradict" in both.stderr


def test_the_bar_of_a_terminal_is_drawn_and_not_spelled_out(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.bin").write_bytes(b"abc")
    monkeypatch.setenv("TERM", "xterm-256color")
    with CliRunner().isolation() as (_, stderr, _):
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
        main(["snapshots", "add", "mine", str(tmp_path / "train.bin")], standalone_mode=False)
        drawn = stderr.getvalue().decode()
    assert "freezing 1 file " in drawn
    assert "\x1b[" in drawn
    assert "\\x1b" not in drawn
