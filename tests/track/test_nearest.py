"""What somebody may have meant by a name that does not exist."""

from __future__ import annotations

import pytest

from tracks_dagster.track.text.nearest import (
    NEAREST_MAX,
    RUNS_NAMED_MAX,
    did_you_mean,
    nearest,
    no_run,
)

KNOWN = ("gpt-20260131-1f3a", "gpt-20260131-77aa", "tabular-20260131-1f3a", "drilled")


def test_the_likest_name_comes_first() -> None:
    assert nearest("gpt-20260131-1f3b", KNOWN)[0] == "gpt-20260131-1f3a"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("driled", "did you mean drilled? "),
        ("gpt-20260131-1f", "did you mean gpt-20260131-1f3a or gpt-20260131-77aa? "),
        ("gpt", "did you mean gpt-20260131-1f3a or gpt-20260131-77aa? "),
        ("zzz", ""),  # nothing is like it: no name is better than a wrong one
    ],
)
def test_the_hint_is_a_clause_to_go_on_after(given: str, told: str) -> None:
    assert did_you_mean(given, KNOWN[:2] + KNOWN[3:]) == told


def test_of_many_alike_only_a_few_are_offered() -> None:
    assert len(nearest("run-1", [f"run-{n}" for n in range(100)])) == NEAREST_MAX


def test_what_was_given_is_never_offered_again() -> None:
    assert nearest("drilled", KNOWN) == ()


def test_of_many_that_begin_so_only_a_few_are_offered() -> None:
    known = [f"run-{n}" for n in range(100)]
    assert nearest("run", known) == ("run-0", "run-1", "run-10")


def test_of_two_letters_one_may_be_wrong() -> None:
    assert nearest("vn", ["node-1", "vm", "ab"]) == ("vm",)


def test_a_few_runs_are_all_named_and_of_many_who_lists_them() -> None:
    assert no_run("zz", ["a-1", "zz"]) == "There is no training run 'zz'; there are: a-1."
    many = no_run("zz", [f"a-{n}" for n in range(RUNS_NAMED_MAX + 1)])
    assert many.endswith("'zz'; `tracks status` lists them.")
