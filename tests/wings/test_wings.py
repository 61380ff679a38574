"""What a wing adds is found by the core, which knows it by one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import tracks_dagster
from tracks_dagster.cli import catalog, main
from tracks_dagster.wing import NAMES, Command, Wing, wings


def test_a_command_of_a_wing_is_listed_behind_the_one_that_it_follows() -> None:
    command = Command(module="x", summary="Planted.", group="Woken at night", after="explain")
    listed = list(catalog([Wing(commands={"planted": command})])["Woken at night"].items())
    at = listed.index(("planted", "Planted."))
    assert [listed[at - 1][0], listed[at + 1][0]] == ["explain", "logs"]


def test_every_wing_is_in_the_list() -> None:
    folder = Path(tracks_dagster.__file__).parent / "wings"
    assert {each.parent.name for each in folder.glob("*/__init__.py")} == set(NAMES)


@pytest.mark.parametrize("name", [name for wing in wings().values() for name in wing.commands])
def test_a_command_of_a_wing_is_found(name: str) -> None:
    assert CliRunner().invoke(main, [name, "--help"]).exit_code == 0
