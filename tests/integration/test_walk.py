"""A new user's walk from an empty folder: README's ten commands, run as they are printed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.integration.homes import COMMAND_S_MAX, Home, embedded
from tests.integration.pasting import from_an_empty_folder, terminal_of

pytestmark = [pytest.mark.full, pytest.mark.timeout(4 * COMMAND_S_MAX)]

COMMANDS_MAX = 10


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
    assert len(from_an_empty_folder()) <= COMMANDS_MAX
    for command in from_an_empty_folder():
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
