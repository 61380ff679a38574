"""What decides is given few things: nobody reads a call of eight arguments once and understands it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import tracks_dagster

PARAMETERS_MAX = 6
HOUSE = Path(tracks_dagster.__file__).parent
# Not the simulation of the lab, which decides nothing for a run: its `play` takes seven.
ROOMS = (
    "track",
    "ledger",
    "reasons",
    "holds",
    "retry",
    "scheduling",
    "checkpoints",
    "data",
    "projects",
    "attempts",
    "evals",
    "studies",
    "wings/history",
    "wings/kubernetes",
    "wings/triage",
    "wings/watch",
    "curves",
    "review",
)


@pytest.mark.parametrize("room", ROOMS)
def test_what_decides_takes_at_most_six_parameters(room: str) -> None:
    acts = {"effects", "edge"}
    paths = [path for path in sorted((HOUSE / room).rglob("*.py")) if not acts & {*path.parts}]
    assert len(paths) > 1, f"there is no room {room}"
    too_many = [
        f"{path.relative_to(HOUSE)}:{each.lineno} {each.name}"
        for path in paths
        for each in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(each, ast.FunctionDef) and _count(each.args) > PARAMETERS_MAX
    ]
    assert not too_many, f"pass a value whole: {too_many}"


def _count(arguments: ast.arguments) -> int:
    given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return sum(each.arg not in ("self", "cls") for each in given)
