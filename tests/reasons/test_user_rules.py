"""A user's own rules: where they stand, what they look at, and which of them are refused."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.evidences import case, condition, end, evidence, word
from tracks_dagster.reasons.classify import CLASSIFIER_VERSION, classifier_version, classify
from tracks_dagster.reasons.effects.rules_file import read_rules
from tracks_dagster.reasons.logs import LINE_CHARACTERS
from tracks_dagster.reasons.user_rules import NO_RULES, UserRules
from tracks_dagster.track.effects.settings_file import parse_settings
from tracks_dagster.track.errors import InvalidInput

LUSTRE = {"name": "lustre", "reason": "storage_io", "pattern": "LustreError.{0,80}evicted"}
EVICTED = "LustreError: 11-0: scratch-OST0003: client was evicted"


def rules(*rows: dict[str, Any]) -> UserRules:
    """Read a file with a row in each line; JSON is YAML."""
    text = "\n".join(f"- {json.dumps(row)}" for row in rows)
    return read_rules(parse_settings(text, "The rules", list_key="rules"))


def test_a_rule_counts_before_the_words_that_ship() -> None:
    given = case(f"{EVICTED}\ntorch.OutOfMemoryError: CUDA out of memory")
    assert classify(given).reason == "gpu_oom"
    verdict = classify(given, rules(LUSTRE))
    assert (verdict.reason, verdict.rule) == ("storage_io", "user_rule/lustre")
    assert any("gpu_oom" in line for line in verdict.against)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"stop": {"by": "ann", "why": "enough", "mode": "drain"}}, "user_cancelled"),
        ({"conditions": (condition("PreemptionByScheduler"),)}, "preempted"),
        ({"slurm_state": "TIMEOUT"}, "walltime_timeout"),
        ({"kernel_lines": ("NVRM: Xid (PCI:0000:3b:00): 79, pid=7",)}, "gpu_hardware"),
    ],
)
def test_a_rule_never_counts_before_intent_control_planes_and_hardware(
    more: dict[str, Any], reason: str
) -> None:
    given = evidence(end(code=1, log=EVICTED), **more)
    assert classify(given, rules(LUSTRE)).reason == reason


VETO = {"name": "banner", "reason": "none", "pattern": "the (spot )?instance was preempted"}


def test_a_veto_takes_a_line_from_every_rule() -> None:
    talk = "the spot instance was preempted"
    assert classify(case(talk)).reason == "preempted"
    assert classify(case(talk), rules(VETO)).reason == "unknown"
    slurm = "slurmstepd: error: *** JOB 7 ON n2 CANCELLED AT 2030-01-01 DUE TO PREEMPTION ***"
    assert classify(case(slurm), rules({**VETO, "pattern": "JOB 7 ON n2"})).reason == "unknown"
    kept = case(f"{talk}\nOSError: [Errno 28] No space left on device")
    assert classify(kept, rules(VETO)).reason == "disk_full"


@pytest.mark.parametrize(
    ("where", "reason"), [("condition", "unknown"), ("any", "unknown"), ("log", "preempted")]
)
def test_a_veto_looks_where_it_says(where: str, reason: str) -> None:
    veto = {"name": "drill", "reason": "none", "pattern": "PreemptionByScheduler", "where": where}
    given = evidence(end(by=9), conditions=(condition("PreemptionByScheduler"),))
    assert classify(given, rules(veto)).reason == reason


def test_a_veto_is_part_of_the_version_and_stops_no_stop_that_was_asked_for() -> None:
    assert rules(VETO).digest != rules(LUSTRE, VETO).digest != rules(LUSTRE).digest
    stopped = evidence(end(by=15), stop={"by": "ann", "why": "the instance was preempted"})
    assert classify(stopped, rules(VETO)).reason == "user_cancelled"


def test_of_two_rules_the_first_counts() -> None:
    other = {**LUSTRE, "name": "other", "reason": "node_failure", "confidence": 0.6}
    assert classify(case(EVICTED), rules(LUSTRE, other)).rule == "user_rule/lustre"
    verdict = classify(case(EVICTED), rules(other, LUSTRE))
    assert (verdict.rule, verdict.confidence) == ("user_rule/other", 0.6)


@pytest.mark.parametrize(
    ("where", "found"),
    [("any", "lkwc"), ("log", "l"), ("last_word", "w"), ("kernel", "k"), ("condition", "c")],
)
def test_a_rule_looks_where_it_says(where: str, found: str) -> None:
    table = rules({**LUSTRE, "reason": "hang", "where": where})
    places = {
        "l": evidence(end(code=1, log=EVICTED)),
        "w": evidence(end(code=1, says=word("code_error", said=f"my.Error: {EVICTED}"))),
        "k": evidence(end(code=1), kernel_lines=(EVICTED,)),
        "c": evidence(end(code=1), conditions=(condition("Odd", type="Event", message=EVICTED),)),
    }
    shown = {key for key, given in places.items() if classify(given, table).reason == "hang"}
    assert shown == set(found)


def test_the_version_names_the_rules_and_changes_with_what_they_say() -> None:
    assert classifier_version() == classifier_version(NO_RULES) == CLASSIFIER_VERSION
    versions = {
        classifier_version(rules(each))
        for each in (LUSTRE, {**LUSTRE, "reason": "hang"}, {**LUSTRE, "where": "log"})
    }
    assert len(versions) == 3
    assert all(v.startswith(f"{CLASSIFIER_VERSION}+rules:") for v in versions)
    assert classifier_version(rules(LUSTRE)) == classifier_version(rules(dict(LUSTRE)))


REFUSED = {
    "'zebra' is not a reason; there are: ": {**LUSTRE, "reason": "zebra"},
    "'fenced' is not a reason": {**LUSTRE, "reason": "fenced"},
    "'evaluator_error' is not a reason": {**LUSTRE, "reason": "evaluator_error"},
    "pattern is missing": {"name": "a", "reason": "hang"},
    "name is missing": {"reason": "hang", "pattern": "abc"},
    "not a regular expression": {**LUSTRE, "pattern": "["},
    "is not text; write it in quotes": {**LUSTRE, "pattern": 5},
    "fits every line": {**LUSTRE, "pattern": "x*"},
    "at most 500": {**LUSTRE, "pattern": "x" * 501},
    "could run for ever": {**LUSTRE, "pattern": r"(a+)+b"},
    "a repeat or a choice inside": {**LUSTRE, "pattern": r"(a|ab|b)*c"},
    "could run for very long": {**LUSTRE, "pattern": "a.*b.*c"},
    "is not a number above 0": {**LUSTRE, "confidence": 1.5},
    "true is not a number above 0, at most 1": {**LUSTRE, "confidence": True},
    "is not a place to look in; there are: any, log": {**LUSTRE, "where": "there"},
    "'patern' is not a key; did you mean pattern?": {**LUSTRE, "patern": "x"},
    "is not made of": {**LUSTRE, "name": "A rule"},
}


@pytest.mark.parametrize("shown", REFUSED)
def test_a_rule_that_cannot_hold_is_refused_with_its_line(shown: str) -> None:
    with pytest.raises(InvalidInput, match="1 error") as caught:
        rules(LUSTRE | {"name": "first"}, REFUSED[shown])
    assert "line 2: " in str(caught.value)
    assert shown in str(caught.value)


def test_all_errors_are_listed() -> None:
    with pytest.raises(InvalidInput) as caught:
        rules(LUSTRE, LUSTRE, {**LUSTRE, "name": "b", "reason": "x", "pattern": "("})
    assert "3 errors" in str(caught.value)
    assert "'lustre' is taken by line 1" in str(caught.value)


@pytest.mark.parametrize("pattern", ["a.*b", r"a\d{1,9}.{0,90}b", r"(foo )?x[ab]+y", "(?i:a)b+?c"])
def test_the_slowest_pattern_that_is_taken_ends_soon_on_the_worst_line(pattern: str) -> None:
    table = rules({**LUSTRE, "pattern": pattern})
    begin = time.thread_time()  # other processes on the machine take none of it
    for line in ("a" * LINE_CHARACTERS, "a1" * (LINE_CHARACTERS // 2), "xa" * 500):
        table.rules[0].cause.words.search(line)
    assert time.thread_time() - begin < 10.0
