"""A new user's walk from an empty folder: README's ten commands, run as they are printed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.integration.homes import COMMAND_S_MAX, Home, embedded
from tests.integration.pasting import terminal_of

pytestmark = [pytest.mark.full, pytest.mark.timeout(4 * COMMAND_S_MAX)]

README = Path(__file__).parents[2] / "README.md"
COMMANDS_MAX = 10


def commands() -> list[str]:
    """Return the commands of the section, as a person would paste them."""
    section = (
        README.read_text(encoding="utf-8").split("## From an empty folder\n")[1].split("\n## ")[0]
    )
    return [line.strip() for line in section.splitlines() if line.startswith("    ")]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A home of a person whose own folder is empty but for it."""
    found = embedded(tmp_path)
    with found.daemon():  # as after `./run ui`: each `run` would start one for itself otherwise
        yield found


def test_the_commands_of_readme_lead_from_an_empty_folder_to_a_model_that_is_handed_over(
    home: Home, tmp_path: Path
) -> None:
    terminal, printed = terminal_of(home, tmp_path), {}
    assert len(commands()) <= COMMANDS_MAX
    for command in commands():
        printed[command.partition("#")[0].strip()] = terminal.paste(command)
    first, second = (home.app.tracks.run(run_id) for run_id in ("first", "second"))
    assert [attempt.reason for attempt in first.attempts] == ["preempted", "completed"]
    assert first.attempts[1].resumed_step == 100
    snapshots = [run.declared.snapshot for run in (first, second)]
    assert {each.dataset for each in snapshots if each is not None} == {"words"}
    assert None not in snapshots
    assert first.declared.model_family == "my-model"
    assert second.declared.config["lr"] == 0.001
    assert "preempted" in printed["tracks explain first/a01"]
    promoted = [(each.body.alias, each.body.promoted) for each in first.promotions]
    assert promoted == [("candidate", True), ("production", True)]
    weights = torch.load(tmp_path / "handoff" / "weights.pt", weights_only=True)
    assert weights["0.weight"].shape == (256, 16)
    assert {"config.json", "code", "evals.json", "lineage.json"} <= {
        each.name for each in (tmp_path / "handoff").iterdir()
    }
