"""Whoever reads a command's table, a page or a message finds its words in the glossary."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from tests.reference import GLOSSARY_PAGE, glossary_page
from tracks_dagster.health.messages import Event
from tracks_dagster.ledger.facts.tables import FACTS
from tracks_dagster.retry.contracts import FIELDS, PARAMETERS, Contracts
from tracks_dagster.review.effects.explain.glossary import FIELD, GLOSSARY, TOPICS
from tracks_dagster.track.names import STAGES
from tracks_dagster.track.states.lifecycle import RunLifecycle
from tracks_dagster.track.states.validity import ARTIFACTS

PACKAGE = Path(__file__).parents[2] / "tracks_dagster"
# The words of the design, section 3.
_DESIGN = """
    snapshot manifest attempt checkpoint step writing committed superseded quarantined verdict receipt
    remediation backoff fenced launch heartbeat gang rank placement ledger track record evidence
    promotion pin goodput epoch hold quarantine decider follower
"""
DESIGN = (
    *_DESIGN.split(),
    *("training run", "termination reason", "retry budget", "lost steps", "blast radius"),
)
# What stands over a column and is a word of every day.
_EVERYDAY = """
    a action added after against an and are as at b − began by bytes change changed changes check
    cost count decided drag each end ended every far file files folder found from h healthy id
    improving in is it keys kind largest last late local log lose made may memory money most newest
    now of on opened over packages per 100 range remark resources rows run runs s saved saves shown
    size smallest so speed up started takes that the then to until value wait was what which why
    worked wrong
"""
_TITLES = re.compile(r"titles|_[A-Z_]*TITLES")
EVERYDAY = frozenset(_EVERYDAY.split())
KNOWN = sorted((word.lower().replace("-", " ") for word in GLOSSARY), key=len, reverse=True)
HEADING = re.compile(r"<(?:th|h[1-4]|dt|legend|summary)[^>]*>([^<{]+)</")


def titles() -> Iterator[str]:
    """Yield what stands over the columns of the commands' tables, and over parts of the board."""
    for path in sorted((PACKAGE / "cli").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            yield from _texts(_titles_of(node))
    for path in sorted((PACKAGE / "board" / "effects" / "pages").glob("*.html")):
        for head in HEADING.findall(path.read_text(encoding="utf-8")):
            yield head.strip()


def _titles_of(node: ast.AST) -> ast.AST | None:
    if isinstance(node, ast.Assign) and _TITLES.fullmatch(ast.unparse(node.targets[0])):
        return node.value
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "print_table":
        return node.args[0]
    return None


def _texts(node: ast.AST | None) -> Iterator[str]:
    for each in () if node is None else ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value


def labels() -> Iterator[str]:
    """Yield what a fact is called in Dagster, what a message is about, and the policy's sections."""
    yield from (fact.label for facts in FACTS.values() for fact in facts if fact.label)
    yield from (event.value for event in Event if event is not Event.TEST)
    yield from (section.name for section in fields(Contracts))


def unknown_words(text: str) -> str:
    """Return the words of a text that are neither of the glossary nor of every day."""
    left = re.sub(r"[,?_-]", " ", text.lower().replace("ies", "y"))
    for term in KNOWN:
        left = re.sub(rf"\b{re.escape(term)}(?:s|d|ed)?\b", " ", left)
    return " ".join(each for each in left.split() if each not in EVERYDAY)


def test_the_page_is_written_from_the_glossary() -> None:
    assert GLOSSARY_PAGE.read_text(encoding="utf-8") == glossary_page()


def test_a_word_has_one_meaning() -> None:
    words = [word for topic in (*TOPICS, FIELD) for word in topic]
    assert len(words) == len(set(words)) == len(GLOSSARY)


def test_a_meaning_needs_no_other_line_of_the_page() -> None:
    of_another = re.compile(r"(it|its|them|these|those|all of these|one of them|the same)\b")
    assert [word for word, meaning in GLOSSARY.items() if of_another.match(meaning)] == []


@pytest.mark.parametrize("word", DESIGN)
def test_the_words_of_the_design_are_in_it(word: str) -> None:
    assert word in GLOSSARY


def test_states_and_stages_are_in_it() -> None:
    assert [
        word for word in (*STAGES, *RunLifecycle) if word.replace("_", " ") not in GLOSSARY
    ] == []


def test_what_a_policy_may_ask_for_is_in_it_by_the_fields_words() -> None:
    spelled = {
        "lr": "learning rate",
        "schedule": "learning rate",
        "warmup": "warm-up",
        "commit": "committed",
        "weights": "parameters",
        "micro_batch": "micro-batch",
        "optimizer": "parameters",
        "base_checkpoint": "checkpoint",
        "expect": "intent",
        "max_cost": "policy",
        "logs": "journal",
        "evals": "eval",
    }
    asked = {*FIELDS, *PARAMETERS, *ARTIFACTS}
    words = {spelled.get(name, name.replace("_", " ")) for name in asked}
    assert sorted(words - set(GLOSSARY)) == []


@pytest.mark.parametrize("text", sorted({*titles(), *labels()}))
def test_every_word_of_a_title_or_a_label_is_of_the_glossary_or_of_every_day(text: str) -> None:
    assert unknown_words(text) == "", "explain it in glossary.py, or it is a word of every day"


def test_a_word_that_nobody_explained_is_found_beside_one_that_is() -> None:
    assert unknown_words("loss") == ""
    assert unknown_words("loss, flux_capacity and the retries") == "flux capacity"
