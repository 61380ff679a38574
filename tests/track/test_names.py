"""Keys that people and Dagster write come back as what they name; a wrong one, with the nearest."""

from __future__ import annotations

import pytest

from tracks_dagster.track import names
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.text.nearest import (
    NEAREST_MAX,
    RUNS_NAMED_MAX,
    did_you_mean,
    nearest,
    no_run,
)


@pytest.mark.parametrize(
    ("run_id", "attempt_id", "key"),
    [
        ("gpt-7", 1, "gpt-7/a01"),
        ("gpt-7", 99, "gpt-7/a99"),
        ("gpt-7", 100, "gpt-7/a100"),
        ("a", 2, "a/a02"),
        ("12.52a", 3, "12.52a/a03"),
    ],
)
def test_an_attempt_has_one_key_and_is_found_by_it(run_id: str, attempt_id: int, key: str) -> None:
    assert names.attempt_key(run_id, attempt_id) == key
    assert names.parse_attempt_key(key) == (run_id, attempt_id)


def test_a_person_may_leave_out_the_zero() -> None:
    assert names.parse_attempt_key("gpt-7/a2") == ("gpt-7", 2)


@pytest.mark.parametrize(
    "key",
    [
        *("", "gpt-7", "gpt-7/", "gpt-7/a", "gpt-7/01", "gpt-7/a00", "gpt-7/a0", "gpt-7/a-1"),
        *("/a01", "gpt-7/a01/", "gpt-7/a01 ", "GPT/a01", "gpt-7/a²", "gpt-7/a٢", "x/gpt-7/a01"),
        *("./a01", "../a01", ".x/a01", "x./a01", "x..y/a01"),
    ],
)
def test_what_names_no_attempt_is_refused(key: str) -> None:
    with pytest.raises(InvalidInput, match=r"names no attempt; write RUN/aNN"):
        names.parse_attempt_key(key)


def test_a_checkpoint_and_an_eval_have_keys_below_their_run() -> None:
    assert names.checkpoint_key("gpt-7", 2, 20) == "gpt-7/a02/step-20"
    assert names.eval_key("gpt-7", "heldout-loss@40") == "gpt-7/heldout-loss@40"
    assert names.parse_eval_key("gpt-7/heldout-loss@40") == ("gpt-7", "heldout-loss@40")
    assert names.parse_eval_key("12.52a/heldout-loss@40") == ("12.52a", "heldout-loss@40")
    assert names.eval_attempt_key("gpt-7", "heldout-loss@40", 2) == "gpt-7/heldout-loss@40/2"


@pytest.mark.parametrize("key", ["", "gpt-7", "gpt-7/a01", "/heldout-loss@40", "GPT/x@1", "../x@1"])
def test_what_names_no_eval_is_refused(key: str) -> None:
    with pytest.raises(InvalidInput, match="names no eval"):
        names.parse_eval_key(key)


@pytest.mark.parametrize("run_id", ["a", "7", "gpt-7", "x" * 40, "12.52a", "-.-", "a." * 19 + "b"])
def test_a_run_id_is_up_to_forty_small_letters_digits_hyphens_and_inner_dots(run_id: str) -> None:
    assert names.check_run_id(run_id) == run_id


@pytest.mark.parametrize(
    "run_id",
    [
        *("", "x" * 41, "GPT", "a b", "a/b", "a_b", "ä", "a\n"),
        *(".", "..", "...", ".a", "a.", "a..b", "x" * 39 + ".", "a." * 20 + "b"),
    ],
)
def test_another_run_id_is_refused(run_id: str) -> None:
    with pytest.raises(InvalidInput, match="cannot name a training run"):
        names.check_run_id(run_id)


def test_every_sensor_job_and_partition_set_has_a_name_of_its_own() -> None:
    values = [
        value
        for name, value in vars(names).items()
        if name.isupper() and isinstance(value, str) and not name.startswith("TRAINER_")
    ]  # a kind of trainer may be called as a launcher is
    assert len(values) == len(set(values))


# What somebody may have meant by a name that does not exist.


KNOWN = ("gpt-20260131-1f3a", "gpt-20260131-77aa", "tabular-20260131-1f3a", "drilled")


def test_the_likest_name_comes_first() -> None:
    assert nearest("gpt-20260131-1f3b", KNOWN)[0] == "gpt-20260131-1f3a"


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("driled", "did you mean drilled? "),
        ("gpt-20260131-1f", "did you mean gpt-20260131-1f3a or gpt-20260131-77aa? "),
        ("gpt", "did you mean gpt-20260131-1f3a or gpt-20260131-77aa? "),
        ("zzz", ""),  # nothing is like it: no name is better than a wrong one
    ],
)
def test_the_hint_is_a_clause_to_go_on_after(given: str, hint: str) -> None:
    assert did_you_mean(given, KNOWN[:2] + KNOWN[3:]) == hint


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
