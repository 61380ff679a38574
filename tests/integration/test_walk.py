"""A new user's walk from an empty folder: README's ten commands, run as they are printed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.integration.homes import COMMAND_S_MAX, Home, embedded

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
    environment = {
        **os.environ,
        **home.variables,
        "HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    folder, printed, where = (
        tmp_path,
        {},
        tmp_path / "where",
    )  # a `cd` holds for the commands after it
    assert len(commands()) <= COMMANDS_MAX
    for command in commands():
        done = subprocess.run(
            ["sh", "-euc", f"{command}\npwd >{where}"],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_S_MAX,
            check=False,
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        folder = Path(where.read_text().strip())
        printed[command.partition("#")[0].strip()] = done.stdout
    first, second = (home.app.tracks.run(run_id) for run_id in ("first", "second"))
    assert [attempt.reason for attempt in first.attempts] == ["preempted", "completed"]
    assert first.attempts[1].resumed_step == 120
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
