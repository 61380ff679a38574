"""`--bundle` and `--add`: a checkpoint handed over, with files of a person's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.stories import RUN_ID, Story
from tracks_dagster.settings import Settings
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
