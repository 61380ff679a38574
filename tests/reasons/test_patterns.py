"""Every regular expression of the classifier, on lines made to hold it up: its time stays bounded.

Compared are two lengths of one line, since wall time says more about the machine than about a pattern.
A pattern whose time grows by the square quadruples where the line doubles; one that backtracks without
bound grows by more than a thousand.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.evidences import case
from tests.reasons.own_failures import FAILURES, Failure
from tracks_dagster.reasons import initiator, logs
from tracks_dagster.reasons import logs as rules_restarts
from tracks_dagster.reasons.classify import classify
from tracks_dagster.reasons.logs import LINE_CHARACTERS, LINES
from tracks_dagster.reasons.rules import control as rules_control
from tracks_dagster.reasons.rules import control_words
from tracks_dagster.reasons.rules import text as rules_text
from tracks_dagster.reasons.rules.cause import LIKELY, NAMED, Tier, required_words
from tracks_dagster.reasons.rules.text import CAUSES
from tracks_dagster.track.reasons import TerminationReason

MODULES = (
    logs,
    control_words,
    logs,
    initiator,
    rules_control,
    rules_restarts,
    rules_text,
)
SMALL = LINE_CHARACTERS // 2
TINY = 22  # characters at which two to the power of the length is some seconds' work
TINY_S_MAX = 0.05
RATIO_MAX = 16.0  # a cube grows by 8; more is one of the clock's jumps, or no polynomial
MEASURABLE_S = 0.01  # what takes less is fast, and its ratio is the clock's
LINE_S_MAX = 0.5  # of one pattern on the longest line: a hundred times what the slowest takes
TRIES = 3
SHORT = 100  # characters of a line, where there are many
SLACK_S = 0.5  # of a busy machine
FILLERS = (
    "a",
    " ",
    ".",
    "1",
    ": ",
    "a.",
    "a b ",
    "error: failed to ",
    "the job is or was ",
    "Error.Error",
    "2024-01-01 ",
    "[rank0]: ",
)
SHIPPED = 130  # fewer patterns than this were found wrongly


def _patterns(value: Any) -> Iterator[re.Pattern[str]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from _patterns(each)


def _shipped() -> dict[str, re.Pattern[str]]:
    found = {}
    for module in MODULES:
        for name, value in vars(module).items():
            for number, pattern in enumerate(_patterns(value)):
                found[f"{module.__name__.rpartition('.')[2]}.{name}[{number}]"] = pattern
    for row in CAUSES:
        for part in ("words", "unless", "beside"):
            words = getattr(row, part)
            if words is not None:
                found[f"{row.name}.{part}"] = re.compile(words.pattern, re.IGNORECASE)
    return found


PATTERNS = _shipped()


def _seconds(pattern: re.Pattern[str], line: str) -> float:
    """Return the processor's seconds of the shortest of some tries; other processes take none."""
    look = pattern.match if pattern is logs._PREFIX else pattern.search  # as it is used
    tries = []
    for _ in range(TRIES):
        begin = time.thread_time()
        look(line)
        tries.append(time.thread_time() - begin)
    return min(tries)


def _held_up(pattern: re.Pattern[str], filler: str) -> str | None:
    """Return the short line that already holds a pattern up: longer ones would never end."""
    tiny = f"{(filler * TINY)[:TINY]}!"
    return tiny if _seconds(pattern, tiny) > TINY_S_MAX else None


def test_every_pattern_of_the_classifier_is_tried() -> None:
    assert len(PATTERNS) > SHIPPED


def test_a_pattern_that_backtracks_without_bound_is_found() -> None:
    assert _held_up(re.compile(r"(a+)+$"), "a") is not None
    assert _held_up(re.compile(r"a+$"), "a") is None


@pytest.mark.parametrize("name", PATTERNS)
def test_no_pattern_runs_for_long_on_a_line_that_is_made_for_it(name: str) -> None:
    pattern = PATTERNS[name]
    words = sorted(required_words(pattern.pattern) or ())[:6]
    for filler in (*FILLERS, *(f"{word} " for word in words), *words):
        assert _held_up(pattern, filler) is None
        big = (filler * LINE_CHARACTERS)[:LINE_CHARACTERS]
        took = _seconds(pattern, big)
        assert took < LINE_S_MAX, filler
        if took > MEASURABLE_S:
            assert took / max(_seconds(pattern, big[:SMALL]), 1e-9) < RATIO_MAX, filler


@pytest.mark.parametrize("filler", ["a b ", "error: failed to ", "[rank0]: "])
def test_the_time_of_a_verdict_does_not_grow_beyond_the_lines_that_are_read(filler: str) -> None:
    """From 400 lines on, more lines cost only what it takes to find the last of them."""

    def seconds(lines: int) -> float:
        line = (filler * LINE_CHARACTERS)[:SHORT]
        evidence = case("\n".join(f"{n} {line}" for n in range(lines)), exit_code=1)
        begin = time.process_time()  # other processes on the machine take none of it
        classify(evidence)
        return time.process_time() - begin

    few = min(seconds(LINES), seconds(LINES))
    assert seconds(16 * LINES) < 4 * few + SLACK_S


# The tables of words: whom they blame, and that the quick look before the slow one misses nothing.


def test_no_words_blame_what_never_ends_an_attempt() -> None:
    never = {TerminationReason.FENCED, TerminationReason.EVALUATOR_ERROR}
    assert not never & {cause.reason for cause in CAUSES}


def test_words_of_a_preemption_weigh_least_and_are_never_sure() -> None:
    """Only a control plane knows of one (`rules.control`): words stand below any exception."""
    by_others = {
        TerminationReason.PREEMPTED,
        TerminationReason.NODE_DRAINED,
        TerminationReason.WALLTIME_TIMEOUT,
    }
    rows = [row for row in CAUSES if row.reason in by_others]
    assert {row.reason for row in rows} == by_others
    assert all(row.tier is Tier.SYMPTOM and row.confidence <= LIKELY for row in rows)


def test_rows_have_names_of_their_own_and_confidences_of_the_scale() -> None:
    assert len({cause.name for cause in CAUSES}) == len(CAUSES)
    assert max(cause.confidence for cause in CAUSES) == NAMED
    assert classify(case("RuntimeError: DataLoader timed out after 9 seconds")).confidence > LIKELY


@pytest.mark.parametrize("failure", FAILURES, ids=str)
def test_the_quick_look_for_words_misses_nothing(failure: Failure) -> None:
    for line in failure.log.splitlines():
        for cause in CAUSES:
            if cause.words.search(line) and (required := cause.words.required) is not None:
                assert any(word in line.lower() for word in required), (cause.name, line)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("a(bcd|efgh)?xyz|no route", {"xyz", "no route"}),
        ("(out of|no) memory", {" memory"}),
        (r"\d{3}(abc|def)", {"abc", "def"}),
        ("(abc|d)", None),
        ("(abc)?", None),
        ("(Abcd)+e", {"abcd"}),
        (r"ab|cdef", None),
    ],
)
def test_the_words_of_a_pattern_are_those_without_which_it_cannot_match(
    pattern: str, words: set[str] | None
) -> None:
    assert required_words(pattern) == (None if words is None else frozenset(words))
