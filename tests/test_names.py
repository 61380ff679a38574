"""No name of the product is one of the words that style.md forbids, but where it is stored."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.test_imports import modules

FORBIDDEN = frozenset({"told", "said", "heard", "stands", "goes", "held"})
# What is stored, or read by others: another name would break who reads it.
KEPT = {
    "tracks_dagster.track.bodies.held": "a field of attempt_supervised and of eval_ended",
    "tracks_dagster.track.states.run_state.held": "that field of the newest claim",
    "tracks_dagster.track.names.ALERT_FIRST_ATTEMPT_HELD": "its value is in records of alerts",
    "tracks_dagster.ledger.texts.said_at": "a column of texts",
    "tracks_dagster.ledger.timeline.told_us": "a column of run_facts and attempt_readings",
    "tracks_dagster.ledger.timeline.held_to_us": "a column of attempt_facts",
    "tracks_dagster.review.effects.goodput.held_s": "a column of attempt_time, a key of --json",
    "tracks_dagster.wings.lab.simulation.past_runs.held_s": "what attempt_time has under that name",
    "tracks_dagster.wings.lab.simulation.schedule_figures.idle_held_s": "a key of --json",
    "tracks_dagster.wings.lab.simulation.served.idle_held_s": "the same, before it is a figure",
    "tracks_dagster.wings.triage.effects.line.held_by": "a key of `tracks triage --json`",
    "tracks_dagster.scheduling.effects.leases.held_by": "a key of `tracks pool --json`",
}


def names_in(tree: ast.AST) -> Iterator[str]:
    """Yield what a module names: functions, classes, parameters, variables, attributes that it sets."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name) | ast.alias(asname=str(name)) | ast.arg(arg=name):
                yield name
            case ast.ExceptHandler(name=str(name)):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def forbidden_names() -> set[str]:
    """Return the dotted names of the product that have a forbidden word in them."""
    return {
        f"{module}.{name}"
        for module, path in modules().items()
        for name in names_in(ast.parse(path.read_text(encoding="utf-8")))
        if FORBIDDEN & set(name.lower().split("_"))
    }


def test_no_name_is_a_forbidden_word_but_what_is_stored() -> None:
    assert forbidden_names() == set(KEPT)


@pytest.mark.parametrize(
    "line",
    [
        "told = 1",
        "def as_said(): ...",
        "def f(held): ...",
        "self._heard = 1",
        "for stands in (): ...",
        "import x as goes",
        "(lambda *, told: 0)",
        "[0 for held in ()]",
    ],
)
def test_a_forbidden_name_is_found_wherever_it_is_given(line: str) -> None:
    assert any(FORBIDDEN & set(name.split("_")) for name in names_in(ast.parse(line)))
