"""The tables of words: whom they blame, and that the quick look before the slow one misses nothing."""

from __future__ import annotations

import pytest

from tests.evidences import case
from tests.reasons.own_failures import FAILURES, Failure
from tracks_dagster.reasons.classify import classify
from tracks_dagster.reasons.rules.cause import LIKELY, NAMED, required_words
from tracks_dagster.reasons.rules.text import CAUSES
from tracks_dagster.track.reasons import TerminationReason


def test_no_words_blame_what_never_ends_an_attempt() -> None:
    never = {TerminationReason.FENCED, TerminationReason.EVALUATOR_ERROR}
    assert not never & {cause.reason for cause in CAUSES}


def test_no_words_alone_make_a_preemption() -> None:
    """Only a control plane, a scheduler or a provider knows of one: `rules_control`."""
    assert TerminationReason.PREEMPTED not in {cause.reason for cause in CAUSES}


def test_rows_have_names_of_their_own_and_confidences_of_the_scale() -> None:
    assert len({cause.name for cause in CAUSES}) == len(CAUSES)
    assert max(cause.confidence for cause in CAUSES) == NAMED
    assert classify(case("RuntimeError: DataLoader timed out after 9 seconds")).confidence > LIKELY


@pytest.mark.parametrize("failure", FAILURES, ids=str)
def test_the_quick_look_for_words_misses_nothing(failure: Failure) -> None:
    for line in failure.log.splitlines():
        for cause in CAUSES:
            if cause.words.search(line) and cause.required is not None:
                assert any(word in line.lower() for word in cause.required), (cause.name, line)


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
