"""The examples of frameworks join in six lines, counted against the scripts as they were before."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.examples import EXAMPLES
from tests.real.nanogpt import CONFIGURATOR, TRAIN, changed_lines
from tracks_dagster.cli.start.init import STARTER

MARK = "  # +"
CHECKOUT = EXAMPLES.parents[1]
IMPORT = r"from tracks_dagster\.training import attempt(?: as (\w+))?"
UNJOINED = Path(__file__).parent / "unjoined"  # scripts that run as they stand, without us
NAMES = sorted(path.name for path in (EXAMPLES / "frameworks").iterdir())


@pytest.mark.parametrize("name", NAMES)
def test_six_changed_lines_join_a_framework(name: str) -> None:
    before = lines_of(UNJOINED / name / "train.py")
    after = lines_of(EXAMPLES / "frameworks" / name / "train.py")
    assert not any("tracks_dagster" in line or line.endswith(MARK) for line in before)
    marked = [line.removesuffix(MARK) for line in after if line.endswith(MARK)]
    plain = [line.removesuffix(MARK) for line in after]
    assert [line for line in plain if line not in before] == marked
    assert 0 < changed_lines("\n".join(before), "\n".join(plain)) <= 6


def lines_of(script: Path) -> list[str]:
    """Return a script's lines, without its docstring and empty ones."""
    _, _, code = script.read_text().split('"""', 2)
    return [line for line in code.splitlines() if line.strip()]


def test_the_names_that_join_are_none_of_a_scripts_own() -> None:
    # nanoGPT's configurator runs in the globals of its script, and assigns to `attempt` there.
    taken = {
        node.id
        for source in (TRAIN, CONFIGURATOR)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    files = [
        *CHECKOUT.glob("*.md"),
        *CHECKOUT.glob("docs/*.md"),
        *EXAMPLES.rglob("train.py"),
        STARTER,
    ]
    imports = [found for path in files for found in re.findall(IMPORT, path.read_text())]
    assert len(imports) >= 10
    assert {alias or "attempt" for alias in imports} & taken == set()
