"""`tracks checkpoints export`: a checkpoint that may be read, into a file that is not there yet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from tests.cli.conftest import Call
from tests.stories import RUN_ID, Story
from tracks_dagster.settings import Settings
from tracks_dagster.track.records import Kind
from tracks_dagster.wiring import build


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the weights go."""
    return tmp_path / "weights.safetensors"


def test_the_weights_of_a_step_are_written(story: Story, call: Call, path: Path) -> None:
    result = call("checkpoints", "export", f"{RUN_ID}@30", str(path))
    assert result.exit_code == 0
    assert "1 tensors, 32 bytes, of attempt 2; weights_sha256" in result.stdout
    assert load_file(path)["w"].shape == (8,)


def test_the_same_as_json(story: Story, call: Call, path: Path) -> None:
    exported = json.loads(call("checkpoints", "export", f"{RUN_ID}@40", str(path), "--json").stdout)
    assert (exported["path"], exported["tensor_count"]) == (str(path), 1)
    assert exported["metadata"]["run_id"] == RUN_ID
    assert (exported["metadata"]["attempt_id"], exported["metadata"]["step"]) == ("3", "40")


def test_of_two_attempts_that_committed_the_step_one_can_be_chosen(
    home: Path, call: Call, path: Path
) -> None:
    story = Story(build(Settings.from_environment()).store)
    story.attempt("preempted", last_step=13, commits=(10,))
    story.attempt("preempted", last_step=13, commits=(10,), resume=None)
    story.write_tracks()
    newest = call("checkpoints", "export", f"{RUN_ID}@10", str(path), "--cut-off")
    assert "of attempt 2;" in newest.stdout
    chosen = ("--attempt", "1", "--force")
    result = call("checkpoints", "export", f"{RUN_ID}@10", str(path), *chosen)
    assert "of attempt 1;" in result.stdout


@pytest.mark.parametrize("how", [(), ("--bundle",)])
def test_weights_at_which_training_was_cut_off_are_handed_on_only_where_that_is_said(
    how: tuple[str, ...], home: Path, call: Call, path: Path
) -> None:
    app = build(Settings.from_environment())
    story = Story(app.store)
    story.attempt("preempted", last_step=23, commits=(10, 20))
    story.write_tracks()
    app.projector.scan()
    causes = {
        row["step"]: row["stop_cause"]
        for row in json.loads(call("checkpoints", "list", RUN_ID, "--json").stdout)
    }
    assert causes == {10: "trained_on", 20: "cut_off"}
    assert "cut_off" in call("checkpoints", "list", RUN_ID).stdout
    export = ("checkpoints", "export", f"{RUN_ID}@20", *how, str(path))
    refused = call(*export)
    assert (refused.exit_code, path.exists()) == (2, False)
    for words in ("attempt 1 ended after step 23 as preempted", "--cut-off"):
        assert words in refused.stderr
    done = call(*export, "--cut-off", "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["stop_cause"] == "cut_off"
    again = call("checkpoints", "export", f"{RUN_ID}@10", str(path.with_name("other")))
    assert "Training went on after it, to step 23." in again.stdout


def test_a_file_that_is_there_needs_force(story: Story, call: Call, path: Path) -> None:
    path.write_bytes(b"precious")
    refused = call("checkpoints", "export", f"{RUN_ID}@40", str(path))
    assert (refused.exit_code, path.read_bytes()) == (2, b"precious")
    assert "--force" in refused.stderr
    assert call("checkpoints", "export", f"{RUN_ID}@40", str(path), "--force").exit_code == 0
    assert "w" in load_file(path)


@pytest.mark.parametrize("kind", [Kind.CHECKPOINT_QUARANTINED, Kind.CHECKPOINT_DELETED])
def test_a_checkpoint_that_nobody_may_resume_from_is_refused_in_words(
    kind: Kind, story: Story, call: Call, path: Path
) -> None:
    story.history.decide_checkpoint(kind, story.history.state.checkpoints[0].ref)
    story.write_tracks()
    for force in ((), ("--force",)):
        refused = call("checkpoints", "export", f"{RUN_ID}@10", str(path), *force)
        assert refused.exit_code == 2
        assert "no checkpoint of step 10 that can be read" in refused.stderr
    assert not path.exists()


def test_a_corrupt_checkpoint_is_bad_news_and_leaves_no_file(
    story: Story, call: Call, home: Path, path: Path
) -> None:
    for chunk in (home / "store" / "runs").rglob("chunks/*"):
        chunk.chmod(0o644)
        chunk.write_bytes(b"other bytes")
    result = call("checkpoints", "export", f"{RUN_ID}@40", str(path))
    assert result.exit_code == 1
    for word in ("chunks/", "has blake3", "expected", "No file was written", "checkpoints verify"):
        assert word in result.stderr
    assert list(path.parent.glob("*safetensors*")) == []


@pytest.mark.parametrize("target", ["nobody", f"{RUN_ID}@", f"{RUN_ID}@11", "nobody@40"])
def test_what_names_no_checkpoint_is_wrong_use(
    target: str, story: Story, call: Call, path: Path
) -> None:
    result = call("checkpoints", "export", target, str(path))
    assert (result.exit_code, path.exists()) == (2, False)
