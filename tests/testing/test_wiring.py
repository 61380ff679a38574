"""Each planted mistake is found by the check meant for it and by no other, in right models none."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch

from tests.examples import EXAMPLES
from tests.testing.models import RIGHT, WRONG, Planted, Project, again
from tracks_dagster import testing
from tracks_dagster.testing import CannotCheck, Finding

ROOT = Path(__file__).parents[2]


def ask_shapes(project: Project) -> None:
    testing.check_shapes(
        project.build(),
        project.batch("cpu"),
        takes=project.takes,
        gives=project.gives,
        sizes=project.sizes,
    )


def ask_positions(project: Project) -> None:
    if project.sees is not None:
        testing.check_positions(project.build(), project.batch("cpu"), sees=project.sees)


def ask_tied(project: Project) -> None:
    if project.tied:
        testing.check_tied(project.build(), *project.tied)


def ask_same(project: Project) -> None:
    testing.check_same(*again(project.build(), project.batch("cpu")))
    if project.paths:
        testing.check_same(*project.paths())


def ask_loss(project: Project) -> None:
    model, inputs = project.build(), project.batch("cpu")
    testing.check_loss_hears_the_output(model, lambda: project.loss(model, inputs))


def ask_overfits(project: Project) -> None:
    model, inputs = project.build(), project.batch("cpu")
    testing.check_overfits_one_batch(model, lambda: project.loss(model, inputs))


# How each check is asked of a project.
ASK: dict[str, Callable[[Project], None]] = {
    "check_shapes": ask_shapes,
    "check_finite": lambda p: testing.check_finite(p.build(), p.batch("cpu")),
    "check_dtypes": lambda p: testing.check_dtypes(p.build(), p.batch("cpu")),
    "check_on_device": lambda p: testing.check_on_device(p.build().to("meta"), p.batch("meta")),
    "check_every_parameter_learns": lambda p: testing.check_every_parameter_learns(
        p.build(), p.batch("cpu"), frozen=p.frozen
    ),
    "check_loss_hears_the_output": ask_loss,
    "check_overfits_one_batch": ask_overfits,
    "check_tied": ask_tied,
    "check_samples_do_not_mix": lambda p: testing.check_samples_do_not_mix(
        p.build(), p.batch("cpu")
    ),
    "check_positions": ask_positions,
    "check_same": ask_same,
    "check_deterministic": lambda p: testing.check_deterministic(p.data),
}


@pytest.fixture(autouse=True)
def _small_and_seeded() -> Iterator[None]:
    """One thread: for tensors of this size more of them wait for one another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(int(os.environ.get("TRACKS_TEST_SEED", "0")))
    yield
    torch.set_num_threads(threads)


def answers(project: Project) -> dict[str, Exception]:
    """Return what each check raised that did not pass, by its name."""
    raised: dict[str, Exception] = {}
    for name, ask in ASK.items():
        try:
            ask(project)
        except (Finding, CannotCheck) as error:
            raised[name] = error
    return raised


def test_the_matrix_has_every_check() -> None:
    assert set(ASK) == {name for name in testing.__all__ if name.startswith("check_")}
    assert (len(RIGHT), len(WRONG)) == (8, 12)


@pytest.mark.parametrize("project", [pytest.param(each, id=name) for name, each in RIGHT.items()])
def test_no_check_finds_anything_in_a_right_model(project: Project) -> None:
    assert {name: str(error) for name, error in answers(project).items()} == {}


@pytest.mark.parametrize("planted", [pytest.param(each, id=name) for name, each in WRONG.items()])
def test_a_planted_mistake_is_found_by_the_check_meant_for_it_alone(planted: Planted) -> None:
    raised = answers(planted.project)
    finding = raised.pop(planted.check)
    assert isinstance(finding, Finding)
    assert planted.words in str(finding)
    assert "Usual cause: " in str(finding)
    assert {name: type(error) for name, error in raised.items()} == dict.fromkeys(
        planted.cannot, CannotCheck
    )


def test_the_example_of_the_docs_holds_for_the_example_that_ships(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    example = text[text.index("    # tests/test_model.py") : text.index("`python -m pip install")]
    monkeypatch.syspath_prepend(EXAMPLES / "gpt")
    names: dict[str, Any] = {}
    try:
        exec(dedent(example), names)
    finally:
        sys.modules.pop("model", None)  # every example has one
    names["test_the_model_is_wired"](0)
