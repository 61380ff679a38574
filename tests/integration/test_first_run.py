"""docs/first-run.md as a new user pastes it: from an empty folder to a full run, refused at first."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.integration.homes import COMMAND_S_MAX, Home, embedded
from tests.integration.pasting import blocks, terminal_of

pytestmark = [pytest.mark.full, pytest.mark.timeout(6 * COMMAND_S_MAX)]

PAGE = Path(__file__).parents[2] / "docs" / "first-run.md"
SET_UP = "./run setup"  # here the environment is there, and the home is the test's
REFUSED = "# exit code 2"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A home of a person whose own folder is empty but for it."""
    found = embedded(tmp_path)
    with found.daemon():  # as after `./run ui`: each `run` would start one for itself otherwise
        yield found


def test_the_commands_of_the_page_bring_a_model_from_a_test_to_its_full_run(
    home: Home, tmp_path: Path
) -> None:
    terminal = terminal_of(home, tmp_path)
    if not entry_points(group="pytest11", name="tracks"):  # a checkout set up before there was one
        terminal.environment["PYTEST_PLUGINS"] = "tracks_dagster.pytest_plugin"
    printed = [
        terminal.paste(block, exit_code=2 if REFUSED in block else 0)
        for block in blocks(PAGE.read_text(encoding="utf-8"))
        if not block.startswith(SET_UP)
    ]
    [refused] = [text for text in printed if "Refused by policy stages.full.needs" in text]
    for gate in ("tests", "smoke", "canary"):
        assert f"  {gate}: " in refused
    big = home.app.tracks.run("big")
    assert big.declared.stage == "full"
    assert [attempt.reason for attempt in big.attempts] == ["completed"]
    assert [each.body.alias for each in big.promotions if each.body.promoted][-1] == "production"
    changed = terminal.paste(
        "echo '# one more line' >> train.py; tracks run --stage full --intent 'Once more.'",
        exit_code=2,
    )
    assert "Refused by policy stages.full.needs" in changed
