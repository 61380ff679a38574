"""Which differences between two environments refuse a resume, and which are only said."""

from __future__ import annotations

import dataclasses

import pytest

from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.retry.environments import (
    Difference,
    EnvironmentRule,
    differences,
    format_differences,
    judge,
)
from tracks_dagster.track.records import Json

SAVED = {
    "python": "3.11.4",
    "torch": "2.12.0+cpu",
    "cuda": None,
    "numpy": "2.3.1",
    "platform": "linux-x86_64",
    "threads": 1,
    "code_sha256": "0" * 64,
}


@pytest.mark.parametrize(
    ("key", "found", "is_allowed"),
    [
        ("python", "3.11.9", True),  # the same minor version
        ("python", "3.12.4", False),
        ("torch", "2.12.1+cpu", False),  # any other build sums in another order
        ("torch", "2.12.0+cu130", False),
        ("torch", None, False),  # it is not installed
        ("cuda", "13.0", False),
        ("numpy", "2.3.9", True),
        ("numpy", "2.4.1", False),
        ("numpy", "3.3.1", False),
        ("platform", "linux-aarch64", True),
        ("threads", 8, True),
        ("code_sha256", "1" * 64, True),
    ],
)
def test_a_difference_in_what_decides_the_sums_is_refused_and_any_other_said(
    key: str, found: Json, is_allowed: bool
) -> None:
    different = differences(SAVED, {**SAVED, key: found})
    assert different == (Difference(key=key, saved=SAVED[key], found=found),)
    judgement = judge(different, DEFAULT_POLICY.environment)
    assert judgement.is_allowed is is_allowed
    assert (judgement.reported if is_allowed else judgement.refused) == different


def test_equal_environments_do_not_differ() -> None:
    assert differences(SAVED, dict(SAVED)) == ()
    assert judge((), DEFAULT_POLICY.environment).is_allowed


def test_what_one_of_the_two_does_not_tell_is_not_compared() -> None:
    assert differences({"torch": "2.12.0"}, {"numpy": "2.3.1"}) == ()
    assert differences({}, SAVED) == ()


def test_refused_and_said_are_distinguished_and_named_with_both_values() -> None:
    different = differences(SAVED, {**SAVED, "torch": "2.13.0+cpu", "code_sha256": "f" * 64})
    judgement = judge(different, DEFAULT_POLICY.environment)
    assert format_differences(judgement.refused) == "torch 2.12.0+cpu → 2.13.0+cpu"
    assert format_differences(judgement.reported) == "code_sha256 000000000000 → ffffffffffff"
    assert Difference(key="cuda", saved=None, found="13.0").words == "cuda none → 13.0"


def test_without_rules_everything_is_only_said() -> None:
    different = differences(SAVED, {**SAVED, "torch": "1"})
    assert judge(different, ()).reported == different


@pytest.mark.parametrize(("key", "parts"), [("torch", 0), ("torch", -1), ("", None)])
def test_a_rule_that_compares_nothing_cannot_be_written(key: str, parts: int | None) -> None:
    with pytest.raises(ValueError, match="cannot hold"):
        EnvironmentRule(key=key, parts=parts)


def test_a_policy_has_one_rule_a_key() -> None:
    twice = (EnvironmentRule(key="torch"), EnvironmentRule(key="torch", parts=1))
    with pytest.raises(ValueError, match="one environment rule a key"):
        dataclasses.replace(DEFAULT_POLICY, environment=twice)


def test_another_rule_is_another_policy() -> None:
    changed = dataclasses.replace(DEFAULT_POLICY, environment=())
    assert changed.version != DEFAULT_POLICY.version
