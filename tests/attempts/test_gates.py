"""Which gates are open to a run: the key, what counts for it, and the words of a refusal."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tracks_dagster.attempts.gates import (
    Shown,
    ShownCertificate,
    ShownRun,
    Subject,
    ask_gates,
    command_of,
    refusal,
)
from tracks_dagster.retry.stages import LIGHT, SHIPPED, STRICT, StagePolicy
from tracks_dagster.track.bodies import SnapshotRef

CONFIG = {
    "steps": 40,
    "seed": 7,
    "global_batch": 24,
    "micro_batch": 4,
    "accumulation": 6,
    "lr": 0.003,
}
NOW = datetime(2026, 2, 8, 12, 0, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
WANTED = Subject(
    code_sha256="c" * 64,
    config=CONFIG,
    roles={},
    snapshot=SnapshotRef(dataset="aws-docs", snapshot_id="d" * 64),
    environment={"launcher": "local", "device_class": "cpu", "torch": "2.9.0"},
)
THREE = StagePolicy(
    rules={**SHIPPED, "full": replace(SHIPPED["full"], needs=("tests", "smoke", "canary"))}
)


def run(stage: str, *, age: timedelta = HOUR, of: Subject = WANTED, **changes: object):  # type: ignore[no-untyped-def]
    known = {"state": "succeeded", "why": "done", "passed": True if stage == "canary" else None}
    return ShownRun(
        run_id=f"{stage}-1", stage=stage, subject=of, at=NOW - age, **{**known, **changes}
    )


def certificate(what: str = "tests", *, age: timedelta = HOUR, is_green: bool = True):  # type: ignore[no-untyped-def]
    return ShownCertificate(
        what=what, is_green=is_green, name=f"{what} of cc", at=NOW - age, words="2 failed"
    )


def ask(*runs: ShownRun, tests: ShownCertificate | None = None, policy: StagePolicy = THREE):  # type: ignore[no-untyped-def]
    found = {} if tests is None else {"tests": tests}
    return ask_gates(policy, "full", WANTED, Shown(runs=runs, certificates=found), now=NOW)


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        ({"config": {**CONFIG, "steps": 10**6}}, True),
        ({"config": {**CONFIG, "seed": 8}}, True),
        # the same 24 samples a step, divided for twice the ranks
        ({"config": {**CONFIG, "micro_batch": 2, "accumulation": 6}}, True),
        ({"config": {**CONFIG, "lr": 0.1}}, False),
        ({"config": {**CONFIG, "global_batch": 48}}, False),
        ({"config": {k: v for k, v in CONFIG.items() if k != "lr"}}, False),
        ({"code_sha256": "e" * 64}, False),
        ({"snapshot": SnapshotRef(dataset="aws-docs", snapshot_id="e" * 64)}, False),
        ({"snapshot": None}, False),
        ({"environment": {**WANTED.environment, "torch": "2.9.1"}}, False),
        ({"environment": {**WANTED.environment, "device_class": "h100"}}, False),
    ],
)
def test_the_key_is_of_code_config_data_and_environment(
    change: dict[str, object], is_same: bool
) -> None:
    other = replace(WANTED, **change)  # type: ignore[arg-type]
    assert (other.key == WANTED.key) is is_same
    assert (other.differences(WANTED) == ()) is is_same


def test_a_config_may_have_keys_that_are_called_as_the_other_parts_are() -> None:
    own = replace(WANTED, config={"code": 1, "dataset": "a", "snapshot": 2})
    for name in own.config:
        other = replace(own, config={**own.config, name: "changed"})
        assert other.key != own.key
        assert [each.key for each in other.differences(own)] == [name]


def test_steps_and_seed_are_found_by_their_role() -> None:
    own = replace(WANTED, config={"max_iters": 5, "lr": 0.1}, roles={"steps": "max_iters"})
    assert own.key == replace(own, config={"max_iters": 9, "lr": 0.1}).key


def test_without_a_global_batch_the_micro_batch_is_part_of_the_key() -> None:
    own = replace(WANTED, config={"micro_batch": 4})
    assert own.key != replace(own, config={"micro_batch": 8}).key


def test_all_gates_are_open_after_tests_smoke_and_canary() -> None:
    answer = ask(run("canary"), run("smoke"), tests=certificate())
    assert answer.closed == {}
    assert answer.passed == {"tests": "tests of cc", "smoke": "smoke-1", "canary": "canary-1"}


def test_light_asks_for_nothing() -> None:
    assert ask(policy=LIGHT).closed == {}


def test_strict_asks_for_a_conformance_run_too() -> None:
    answer = ask(run("canary"), run("smoke"), tests=certificate(), policy=STRICT)
    assert answer.closed == {"conform": "none of this code (cccccccccccc)"}


OTHER = replace(WANTED, code_sha256="e" * 64, config={**CONFIG, "lr": 0.5})


@pytest.mark.parametrize(
    ("shown", "why"),
    [
        ([], "there is none of this project"),
        (
            [run("canary", age=8 * DAY)],
            "the newest with this key, canary-1, is 8.0 d old, and 7 d count",
        ),
        (
            [run("canary", passed=False, verdict="p = 0.4")],
            "the newest with this key, canary-1, did not pass: p = 0.4",
        ),
        ([run("canary", passed=None)], "canary-1, did not pass: its losses were not judged"),
        (
            [run("canary", state="refused", why="Attempt 1 ended as code_error.")],
            "canary-1, is refused: Attempt 1 ended as code_error.",
        ),
        (
            [run("canary", of=OTHER)],
            "none with this key; from the nearest, canary-1: code eeeeeeeeeeee → cccccccccccc, "
            "lr 0.5 → 0.003",
        ),
        # the nearest is the one with the fewest differences, not the newest
        (
            [
                run("canary", of=OTHER),
                replace(run("canary", of=replace(OTHER, config=CONFIG)), run_id="c-2"),
            ],
            "from the nearest, c-2: code eeeeeeeeeeee → cccccccccccc",
        ),
    ],
)
def test_a_closed_gate_says_what_is_wrong(shown: list[ShownRun], why: str) -> None:
    answer = ask(*shown, run("smoke"), tests=certificate())
    assert list(answer.closed) == ["canary"]
    assert why in answer.closed["canary"]


def test_an_older_canary_that_passed_counts_beside_a_newer_one_that_failed() -> None:
    shown = [run("canary", passed=False), replace(run("canary", age=DAY), run_id="c-2")]
    assert ask(*shown, run("smoke"), tests=certificate()).passed["canary"] == "c-2"


def test_freshness_ends_after_seven_days_to_the_second() -> None:
    week = timedelta(days=7)
    assert ask(run("canary", age=week), run("smoke"), tests=certificate()).closed == {}
    late = ask(run("canary", age=week + timedelta(seconds=1)), run("smoke"), tests=certificate())
    assert list(late.closed) == ["canary"]


@pytest.mark.parametrize(
    ("tests", "why"),
    [
        (None, "none of this code (cccccccccccc)"),
        (certificate(is_green=False), "the newest of this code is not green: 2 failed"),
        (certificate(age=8 * DAY), "the newest of this code is 8.0 d old, and 7 d count"),
    ],
)
def test_tests_are_asked_for_of_this_code(tests: ShownCertificate | None, why: str) -> None:
    assert ask(run("canary"), run("smoke"), tests=tests).closed == {"tests": why}


def test_a_refusal_names_the_rule_each_gate_and_the_command() -> None:
    closed = {"tests": "none of this code", "canary": "there is none of this project"}
    options = ["--project", "my model", "--set", "lr=0.1"]
    commands = {gate: command_of(gate, options, "my model") for gate in closed}
    assert refusal("big-1", "full", closed, commands) == (
        "Refused by policy stages.full.needs: big-1 was not shown to be ready.\n"
        "  tests: none of this code; `pytest --tracks` in my model.\n"
        "  canary: there is none of this project; `tracks canary --project 'my model' --set lr=0.1`.\n"
        '--skip-gate tests --skip-gate canary --why "…" declares it anyway; the gate and the reason '
        "are recorded."
    )
