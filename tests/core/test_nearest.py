"""What somebody may have meant by a name that does not exist."""

from __future__ import annotations

import pytest

from tracks_dagster.core.nearest import NEAREST_MAX, did_you_mean, nearest

KNOWN = ("gpt-20260131-1f3a", "gpt-20260131-77aa", "tabular-20260131-1f3a", "drilled")


def test_the_likest_name_comes_first() -> None:
    assert nearest("gpt-20260131-1f3b", KNOWN)[0] == "gpt-20260131-1f3a"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("driled", "did you mean drilled? "),
        ("gpt-20260131-1f", "did you mean gpt-20260131-1f3a or gpt-20260131-77aa? "),
        ("zzz", ""),  # nothing is like it: no name is better than a wrong one
    ],
)
def test_the_hint_is_a_clause_to_go_on_after(given: str, told: str) -> None:
    assert did_you_mean(given, KNOWN[:2] + KNOWN[3:]) == told


def test_of_many_alike_only_a_few_are_offered() -> None:
    assert len(nearest("run-1", [f"run-{n}" for n in range(100)])) == NEAREST_MAX


def test_what_was_given_is_never_offered_again() -> None:
    assert nearest("drilled", KNOWN) == ()
