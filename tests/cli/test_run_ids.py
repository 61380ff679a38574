"""A run id with dots, as large trainings number theirs ("12.52a"), works in every command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.examples import EXAMPLES
from tests.stories import Story
from tracks_dagster.settings import Settings
from tracks_dagster.wiring import build

RUN = "12.52a"


@pytest.fixture
def dotted(home: Path) -> Story:
    """The whole story of a run whose id has a dot."""
    app = build(Settings.from_environment())
    story = Story(app.store, RUN).whole()
    app.projector.scan()
    return story


@pytest.mark.parametrize(
    "arguments",
    [
        ("status", RUN),
        ("triage", RUN),
        ("explain", RUN),
        ("explain", f"{RUN}/a02"),
        ("report", RUN),
        ("checkpoints", "list", RUN),
        ("checkpoints", "verify", RUN),
        ("checkpoints", "pin", f"{RUN}@30", "--why", "it is good"),
        ("diff", f"{RUN}/a01", f"{RUN}/a02"),
        ("diff", f"{RUN}@20", f"{RUN}@40"),
        ("note", f"{RUN}/a02", "It has a dot."),
        ("promote", f"{RUN}@40", "--alias", "best", "--why", "it is"),
        *(
            ("lineage", f"{kind}:{RUN}{rest}")
            for kind, rest in (
                ("run", ""),
                ("attempt", "/a02"),
                ("checkpoint", "@40"),
                ("checkpoint", "/a01@20"),
                ("eval", "/heldout-loss@40"),
            )
        ),
        ("quarantine", f"attempt:{RUN}/a01", "--why", "a bad batch"),
    ],
    ids=" ".join,
)
def test_every_command_takes_a_run_id_with_dots(
    arguments: tuple[str, ...], dotted: Story, call: Call
) -> None:
    answer = call(*arguments)
    assert answer.exit_code == 0, answer.stderr
    assert answer.stdout.strip()


def test_an_exported_run_with_dots_is_explained_from_its_archive(
    dotted: Story, call: Call, tmp_path: Path
) -> None:
    archive = str(tmp_path / f"{RUN}.tar.gz")
    assert call("export", RUN, archive).exit_code == 0
    explained = call("explain", "--archive", archive, f"{RUN}/a02", "--json")
    assert json.loads(explained.stdout)["key"] == f"{RUN}/a02"


@pytest.mark.parametrize("run_id", [".", "..", ".hidden", "12.", "12..52"])
def test_dots_that_could_lead_out_of_a_folder_are_refused(run_id: str, call: Call) -> None:
    refused = call("run", "--run-id", run_id, "--intent", "Try it.")
    assert refused.exit_code == 2
    assert "cannot name a training run" in refused.stderr


def test_a_run_id_in_a_bucket_without_a_store_is_free(
    home: Path, s3_url: str, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.setenv("TRACKS_STORE", s3_url)
    project = EXAMPLES / "gpt"
    monkeypatch.chdir(project)
    named = ("run", "--run-id", "first", "--intent", "Is the name free?")
    refused = call(*named, "--class", "nosuch")
    assert refused.exit_code == 2
    assert "nosuch" in refused.stderr
    assert "workload class" in refused.stderr
    read = call("status")
    assert "holds no store" in read.stderr  # an address may be wrong, where nothing is to be made
