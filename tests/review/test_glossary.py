"""Who reads a command's table, a page or a message finds its words in the glossary."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from itertools import chain
from pathlib import Path

import pytest

from tests.reference import GLOSSARY_PAGE, glossary_page
from tracks_dagster.ledger.facts.tables import FACTS
from tracks_dagster.retry.contracts import PARAMETERS, Contracts
from tracks_dagster.retry.submission import FIELDS
from tracks_dagster.review.explain.glossary import FIELD, GLOSSARY, TOPICS
from tracks_dagster.track.names import STAGES
from tracks_dagster.track.states.lifecycle import RunLifecycle
from tracks_dagster.track.states.validity import ARTIFACTS
from tracks_dagster.wings.watch.health.rules import RULES
from tracks_dagster.wings.watch.notifying.messages import Event

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
    *("locality", "scheduler", "search", "artifact"),
)
# What stands over a column and is a word of every day.
_EVERYDAY = """
    a action added after against an and are as at b best − began by bytes change changed changes
    check columns cost count curves decided drag each end ended every explains far file files folder
    found from h healthy id improving in is it key keys kind largest last late local log lose made may
    memory money most newest now of on opened over packages per 100 range remark resources rows run runs
    s saved saves shown size smallest so speed up started takes that the then to training trains until
    value view wait was well what which why work worked wrong
"""
# What makes the sentences of messages and alerts; beside these, every function that makes an `Alert`.
SENTENCES = (
    *(f"wings/watch/health/{name}.py" for name in ("rules", "healthy", "improving", "resources")),
    *(f"retry/{name}.py" for name in ("avoidance", "decision", "limits", "pauses")),
    *("wings/watch/notifying/messages.py", "wings/watch/health/advice.py"),
    *("review/lights.py", "track/states/lifecycle.py"),
)
_TITLES = re.compile(r"titles|_[A-Z_]*TITLES")
EVERYDAY = frozenset(_EVERYDAY.split())
# What else a sentence is made of: no word of the field.
_PLAIN = """
    about above absolute accepts afresh again all allows alone another any ask asked avoided back be
    became been before begin below best better between beyond can cannot case checkout common
    configuration continue continues copy correct credential data day decide decides decision
    declare declared does due else ends evaluated exists exit failed failure failures fall falls
    fastest fewer finish flat for free freeze get git give gone grant has have held hour hours how
    if ignores install instead interrupts into its itself keeps known later latest least left lets
    library limit limited limits living long longer look losses low lower machine make many max mean
    midnight min missed misses more much name names needs never new no nobody none not nothing
    number obeyed old once one only open or others out own part passed past path pause permission person
    ran read reads recent renew rest restoring room row same says script see settings shows silence
    silent since slow smaller space spent stands start starting starts stays still stop stored tell
    temporary than their them themselves there they this took underused outside unheld
    unread
    update use used usual utc version very waited waits went where whether whole whose with within
    without words worth would writes wrote yet
"""
PLAIN = EVERYDAY | frozenset(_PLAIN.split())


def _spelled(text: str) -> str:
    return re.sub(r"[,?_-]", " ", re.sub(r"ie[sd]\b", "y", text.lower()))


KNOWN = sorted(map(_spelled, GLOSSARY), key=len, reverse=True)
HEADING = re.compile(r"<(?:th|h[1-4]|dt|legend|summary)[^>]*>([^<{]+)</")


def titles() -> Iterator[str]:
    """Yield what stands over the columns of the commands' tables, and over parts of the board."""
    edges = ((PACKAGE / "cli").rglob("*.py"), PACKAGE.glob("wings/*/edge/*.py"))
    for path in sorted(chain(*edges)):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            yield from _texts(_titles_of(node))
    for path in sorted((PACKAGE / "wings" / "watch" / "board").rglob("*.html")):
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


def sentences() -> Iterator[str]:
    """Yield the names of alerts and the sentences of messages, "…" for each value that is filled in."""
    yield from (rule.replace("_", " ") for rule in RULES)
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if path.relative_to(PACKAGE).as_posix() in SENTENCES:
            yield from _sentences(ast.parse(source))
        elif "Alert(" in source:
            parts = _alerting(ast.parse(source))
            yield from (text for each in parts for text in _sentences(each))


def _alerting(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any(
            isinstance(each, ast.Call) and ast.unparse(each.func) == "Alert"
            for each in ast.walk(node)
        ):
            yield node


def _sentences(node: ast.AST) -> Iterator[str]:
    """Yield each text below a node, none of its docstrings; a filled-in one has "…" for its values."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(p.value) if isinstance(p, ast.Constant) else "…" for p in node.values)
        values = (each.value for each in node.values if isinstance(each, ast.FormattedValue))
        yield from (text for value in values for text in _sentences(value))
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    for child in ast.iter_child_nodes(node):
        yield from _sentences(child)


def words_of(sentence: str) -> str:
    """Return what people read of it: no command, no key, no value, no number."""
    said = re.sub(r"`[^`]*`|\(policy …\)|{\w*}|…Z|--[\w-]+|'s\b", " ", sentence)
    is_sentence = " " in said.strip() and not said.startswith("tracks ")
    words = (each.strip("…'().,;:×") for each in said.split()) if is_sentence else ()
    return " ".join(each for each in words if re.fullmatch(r"[A-Za-z–-]+", each))


def labels() -> Iterator[str]:
    """Yield what a fact is called in Dagster, what a message is about, and the policy's sections."""
    yield from (fact.label for facts in FACTS.values() for fact in facts if fact.label)
    yield from (event.value for event in Event if event is not Event.TEST)
    yield from (section.name for section in fields(Contracts))


def unknown_words(text: str, everyday: frozenset[str] = EVERYDAY) -> str:
    """Return the words of a text that are neither of the glossary nor of every day."""
    left = _spelled(text)
    for term in KNOWN:
        left = re.sub(rf"\b{re.escape(term)}(?:s|d|\w?ed|nce)?\b", " ", left)
    return " ".join(each for each in left.split() if each not in everyday)


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


@pytest.mark.parametrize("text", sorted({words_of(each) for each in sentences()} - {""}))
def test_every_word_of_a_message_is_of_the_glossary_or_of_every_day(text: str) -> None:
    assert unknown_words(text, PLAIN) == "", "explain it in glossary.py, or it is a plain word"


def test_a_word_that_nobody_explained_is_found_beside_one_that_is() -> None:
    assert unknown_words("loss") == ""
    assert unknown_words("loss, flux_capacity and the retries") == "flux capacity"
