"""Neither names of the product nor texts have a word that style.md forbids, but stored ones."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

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


ROOT = Path(__file__).parents[1]
TEXTS = (
    *("tests/**/*.py", "tracks_dagster/**/*.py", "benchmarks/**/*.py"),
    *("tracks_dagster/**/*.sql", "docs/**/*.md", "changes/*.md", "README.md", "CONTRIBUTING.md"),
)
# Of messages, tests and docs: "is told" says less than hears, learns, is reported; "X is no Y" is not
# a Y. Left out are stored names, and what English has no other words for ("there is no", "no longer").
# Each begins with a letter or two, not with a look back, so that all texts take a second.
NOT_PLAIN = re.compile(
    r"[Tt]old(?<![a-z].{4})(?!_us|_exit_code|[a-z])|[Aa]new(?<![a-z].{4})(?<!loader_made_anew)(?![a-z])"
    r"|[Ww]hoever(?![a-z])|[Aa]ll the same(?<![a-z].{12})(?![a-z])"
    r"|(?:[Ww]hat|[Tt]hat)[ _]is[ _]none(?![a-z])"
    r"|[ _](?<![Tt]here[ _])(?:is|are|was|were)[ _]no[ _](?!longer|more|other|less|one)[a-z]"
)


def test_messages_tests_and_docs_are_in_plain_words() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}: {match.group()}"
        for pattern in TEXTS
        for path in sorted(ROOT.glob(pattern))
        if path != Path(__file__)
        for text in [path.read_text(encoding="utf-8")]
        for match in NOT_PLAIN.finditer(text)
    ]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "a person is told of it",
        "def test_a_person_is_told() -> None:",
        "Told so, it ends.",
        "made anew",
        "whoever reads it",
        "it starts all the same",
        "what is none is refused",
        "'x' is no mode",
        "def test_a_note_is_no_record() -> None:",
    ],
)
def test_what_is_not_plain_is_found(line: str) -> None:
    assert NOT_PLAIN.search(line)


@pytest.mark.parametrize(
    "line",
    [
        "there is no run",
        "There are no runs",
        "test_there_are_no_runs",
        "it is no longer so",
        "run_facts.told_us",
    ],
)
def test_plain_words_and_stored_names_pass(line: str) -> None:
    assert not NOT_PLAIN.search(line)
