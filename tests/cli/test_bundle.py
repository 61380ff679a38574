"""`--bundle` and `--add`: a checkpoint handed over, with files of a person's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Call
from tests.stories import RUN_ID, Story
from tracks_dagster.checkpoints.retention import best_of
from tracks_dagster.reading import open_tracks_to_read
from tracks_dagster.settings import Settings
from tracks_dagster.track.artifacts import note_of
from tracks_dagster.track.records import Kind
from tracks_dagster.training.saves import handoff
from tracks_dagster.training.saves.artifacts import store_files
from tracks_dagster.wiring import build

COMMANDS = {
    "promote": ("promote", f"{RUN_ID}@40", "--alias", "stable", "--why", "it is"),
    "export": ("checkpoints", "export", f"{RUN_ID}@40"),
}
commands = pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    return path


@commands
def test_a_bundle_has_the_files_that_were_added(
    story: Story, call: Call, tmp_path: Path, tokenizer: Path, command: tuple[str, ...]
) -> None:
    bundle = tmp_path / "bundle"
    (readme := tmp_path / "README.md").write_text("mine")
    files = ("--bundle", str(bundle), "--add", str(tokenizer), "--add", str(readme))
    done = call(*command, *files)
    assert done.exit_code == 0, done.stderr
    assert f"{bundle}: 9 files" in done.stdout
    assert (bundle / "tokenizer.json").read_text() == "{}"
    assert "  README.md\n" in (bundle / "SHA256SUMS").read_text()
    lineage = json.loads((bundle / "lineage.json").read_text())
    aliases = [each["alias"] for each in lineage["promotions"]]
    assert ("stable" in aliases) == (command[0] == "promote")


def test_a_bundle_has_what_the_script_left_and_no_state_of_training(
    story: Story, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = tmp_path / "best"
    best.mkdir()
    (best / "adapter.bin").write_bytes(b"weights")
    app = build(Settings.from_environment())
    for text in ("older", "newer"):
        (best / "adapter.bin").write_text(text)
        files = store_files(app.store, RUN_ID, best)
        note = note_of("best", files, step=40, by="attempt 2")
        app.tracks.note_run(RUN_ID, app.tracks.draft(Kind.NOTE, note))
    write = handoff.write_checkpoint

    def with_files(store: Any, ref: Any, folder: Path, **rest: Any) -> str:
        digest = write(store, ref, folder, **rest)
        for name in ("optimizer.pt", "rng_state_1.pth", "model.safetensors", "model.pkl"):
            (folder / handoff.OWN_FILES).mkdir(exist_ok=True)
            (folder / handoff.OWN_FILES / name).write_text("")
        return digest

    monkeypatch.setattr(handoff, "write_checkpoint", with_files)
    bundle = tmp_path / "bundle"
    done = call("checkpoints", "export", f"{RUN_ID}@40", "--bundle", str(bundle))
    assert done.exit_code == 0, done.stderr
    assert (bundle / "artifacts" / "best" / "adapter.bin").read_text() == "newer"
    assert sorted(path.name for path in (bundle / "files").iterdir()) == [
        "model.pkl",
        "model.safetensors",
    ]
    assert "Not in it: optimizer.pt, rng_state_1.pth, which only training on needs." in done.stdout
    assert "artifact best after step 40" in call("explain", RUN_ID, "--full").stdout


@commands
def test_a_command_completes_a_bundle_before_it_is_sealed(
    story: Story, call: Call, tmp_path: Path, command: tuple[str, ...]
) -> None:
    bundle = tmp_path / "bundle"
    failed = call(*command, "--bundle", str(bundle), "--then", "sh -c 'exit 3'")
    assert (failed.exit_code, bundle.exists()) == (2, False)
    assert "ended with 3 (above is why), so no bundle was made" in failed.stderr
    merge = "sh -c 'mkdir merged && cp weights.pt merged/'"
    done = call(*command, "--bundle", str(bundle), "--then", merge)
    assert done.exit_code == 0, done.stderr
    assert (bundle / "merged/weights.pt").read_bytes() == (bundle / "weights.pt").read_bytes()
    assert "  merged/weights.pt\n" in (bundle / "SHA256SUMS").read_text()
    alone = call(*command, "--then", "true")
    assert (alone.exit_code, "--bundle DIR" in alone.stderr) == (2, True)


def test_the_best_checkpoint_is_promoted_by_the_metric_of_the_retention(
    story: Story, call: Call
) -> None:
    refused = call("promote", f"{RUN_ID}@40", "--best", "--alias", "top", "--why", "it is")
    assert (refused.exit_code, "give one of them" in refused.stderr) == (2, True)
    tracks = open_tracks_to_read(Settings.from_environment())
    best = best_of(tracks.run(RUN_ID))
    result = call("promote", RUN_ID, "--best", "--alias", "top", "--why", "it is")
    assert best is not None
    assert f"step {best.ref.step} of {RUN_ID}" in result.output


@commands
@pytest.mark.parametrize("name", ["weights.pt", "SHA256SUMS", "twice.txt"])
def test_a_name_that_is_taken_is_refused_before_anything_is_done(
    story: Story, call: Call, tmp_path: Path, command: tuple[str, ...], name: str
) -> None:
    (tmp_path / name).write_text("")
    bundle = tmp_path / "bundle"
    before = records()
    refused = call(*command, f"--bundle={bundle}", *[f"--add={tmp_path / name}"] * 2)
    assert refused.exit_code == 2
    assert f"another file of the bundle is called {name}" in refused.stderr
    assert (bundle.exists(), records()) == (False, before)


@commands
def test_a_file_is_added_to_a_bundle_only(
    story: Story, call: Call, tokenizer: Path, command: tuple[str, ...]
) -> None:
    before = records()
    refused = call(*command, "--add", str(tokenizer))
    assert (refused.exit_code, records()) == (2, before)
    assert "--bundle DIR" in refused.stderr


def records() -> int:
    """Count the records of the run's track."""
    return len(build(Settings.from_environment()).tracks.records(f"runs/{RUN_ID}"))
