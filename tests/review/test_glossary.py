"""Whoever reads a command's table, a page or a message finds its words in the glossary."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.reference import GLOSSARY_PAGE, glossary_page
from tracks_dagster.retry.contracts import FIELDS, PARAMETERS
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
    a action added after against an as at b − began bytes changed cost count each end ended every
    far file files from h healthy improving in is it kind late may lose money most newest now of on
    opened over per 100 remark resources rows run s saved saves size smallest largest so speed-up
    then to value wait was what which why worked wrong
"""
_TITLES = re.compile(r"titles|_[A-Z_]*TITLES")
EVERYDAY = frozenset(_EVERYDAY.split())


def titles() -> Iterator[str]:
    """Yield what stands over the columns of the commands' tables and of the board's."""
    for path in sorted((PACKAGE / "cli").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Assign) and _TITLES.fullmatch(ast.unparse(node.targets[0])):
                found = (each for each in ast.walk(node.value) if isinstance(each, ast.Constant))
                yield from (each.value for each in found if isinstance(each.value, str))
    for path in sorted((PACKAGE / "board" / "effects" / "pages").glob("*.html")):
        for head in re.findall(r"<th[^>]*>([^<{]+)</th>", path.read_text(encoding="utf-8")):
            yield head.strip()


def is_known(title: str) -> bool:
    """Whether every word of it is of every day, or it has a word of the glossary."""
    words = re.sub(r"[,?]", "", title.lower()).replace("ies", "y")
    if all(each in EVERYDAY for each in words.split()):
        return True
    return any(re.search(rf"\b{re.escape(term)}s?\b", words) for term in KNOWN)


KNOWN = {word.lower() for word in GLOSSARY}


def test_the_page_is_written_from_the_glossary() -> None:
    assert GLOSSARY_PAGE.read_text(encoding="utf-8") == glossary_page()


def test_a_word_has_one_meaning() -> None:
    words = [word for topic in (*TOPICS, FIELD) for word in topic]
    assert len(words) == len(set(words)) == len(GLOSSARY)


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
        "config": "parameters",
        "environment": "receipt",
        "logs": "journal",
        "evals": "eval",
    }
    asked = {*FIELDS, *PARAMETERS, *ARTIFACTS}
    words = {spelled.get(name, name.replace("_", " ")) for name in asked}
    assert sorted(words - set(GLOSSARY)) == []


@pytest.mark.parametrize("title", sorted(set(titles())))
def test_what_stands_over_a_column_is_a_word_of_the_glossary_or_of_every_day(title: str) -> None:
    assert is_known(title), f"{title!r}: explain it in glossary.py, or it is a word of every day"
