"""Which gates are open to a run: the key, what counts for it, and the words of a refusal."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.bodies import TRAIN, declared
from tests.histories import History
from tracks_dagster.attempts.gates import (
    Shown,
    ShownCertificate,
    ShownRun,
    Subject,
    ask_gates,
    command_of,
    options_of,
    ran_otherwise,
    refusal,
)
from tracks_dagster.cli.common import parse_settings
from tracks_dagster.retry.stages import LIGHT, SHIPPED, STRICT, StagePolicy
from tracks_dagster.track.bodies import ComputeRequest, Program, SnapshotRef
from tracks_dagster.track.states.checkpoints import CheckpointRef

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
        # anyone who sets a clock ahead makes nothing last longer
        ([run("canary", age=-3 * DAY)], "canary-1, is dated 3.0 d after now: the clock was wrong"),
        (
            [run("canary", passed=False, verdict="p = 0.4")],
            "the newest with this key, canary-1, did not pass: p = 0.4",
        ),
        ([run("canary", passed=None)], "canary-1, did not pass: it was not judged"),
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


def test_a_smoke_that_became_another_run_does_not_count() -> None:
    shown = run("smoke", otherwise="attempt 2 was not as declared: lr 0.003 → 0.0015")
    answer = ask(run("canary"), shown, tests=certificate())
    assert answer.closed == {
        "smoke": "the newest with this key, smoke-1, does not count: attempt 2 was not as declared: "
        "lr 0.003 → 0.0015"
    }


def test_clocks_of_two_machines_may_be_minutes_apart() -> None:
    ahead = run("canary", age=timedelta(minutes=-30))
    assert ask(ahead, run("smoke"), tests=certificate()).closed == {}


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


SOFTWARE = {"launcher": "local", "device_class": "cpu", "torch": "2.9.0"}
MINE = {"python": "3.11", "torch": "2.9.0"}  # what a rank found; only what was declared is compared


def retried(stage: str = "smoke", *, last: int = 20, software: object = MINE, **changes: object):  # type: ignore[no-untyped-def]
    """Return a run whose second attempt was opened with `changes`, and ran from step 10 to `last`."""
    compute = ComputeRequest()
    known = {"config": CONFIG, "environment": SOFTWARE, "compute": compute, "trainer": "r/c.tar"}
    history = History().declare(stage=stage, **known).open().place(environment=MINE).restore()
    history.commit(10).end("preempted", last_step=12)
    history.open(**changes).place(environment=software).restore()
    if last > 10:
        history.commit(last)
    return history.end(last_step=last).finish()


@pytest.mark.parametrize(
    ("history", "why"),
    [
        (retried(), None),
        # what the ranks divide otherwise, after a remedy, is not a part of a key
        (retried(config={**CONFIG, "micro_batch": 2, "accumulation": 12}), None),
        (retried(config={**CONFIG, "steps": 30}), None),
        (
            retried(config={**CONFIG, "lr": 0.0015}),
            "attempt 2 was not as declared: lr 0.003 → 0.0015",
        ),
        (retried(trainer="r/d.tar"), "attempt 2 was not as declared: code c → d"),
        (
            retried(snapshot=replace(TRAIN, snapshot_id="e" * 64)),
            f"snapshot {TRAIN.snapshot_id[:12]} → eeeeeeeeeeee",
        ),
        (
            retried(compute=ComputeRequest(device_class="h100")),
            "environment device_class cpu → h100",
        ),
        (retried(software={**MINE, "torch": "2.9.1"}), "environment torch 2.9.0 → 2.9.1"),
        (retried(software={**MINE, "python": "3.12"}), None),
        # a kitchen sink is of its code and its data, whatever the model
        (retried("kitchen_sink", config={**CONFIG, "lr": 0.0015}), None),
        (retried("kitchen_sink", trainer="r/d.tar"), "code c → d"),
        (
            History().declare().open().place().restore().end(last_step=0).finish(),
            "it trained no step",
        ),
    ],
)
def test_what_a_run_shows_is_what_it_was_declared_with_and_nothing_else(
    history: History, why: str | None
) -> None:
    found = ran_otherwise(history.state)
    assert found is None if why is None else why in (found or "")


BRANCH = CheckpointRef("big", 2, 500, "prefix", "a" * 64)
SCRIPT = Program(entry=("train.py",), config_name=None, takes_any_key=True)
PROJECT = replace(SCRIPT, takes_any_key=False)


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({"program": PROJECT}, ["--project", "/home/ann/gpt"]),
        ({"program": SCRIPT}, ["--trainer", "/home/ann/gpt/train.py"]),
        ({"branched_from": BRANCH}, ["--from", "big@500", "--from-attempt", "2"]),
        ({"folder": None}, []),
        (
            {"compute": ComputeRequest(launcher="kubernetes")},
            [*["--project", "/home/ann/gpt"], "--on", "kubernetes"],
        ),
    ],
)
def test_the_command_names_the_code_by_what_a_run_takes_it_from(
    changes: dict[str, object], options: list[str]
) -> None:
    known = {"config": {"steps": 9}, "folder": "/home/ann/gpt", **changes}
    assert options_of(declared(**known), None) == options


@pytest.mark.parametrize(
    "value", ["text", "1e3", "true", "null", '"x"', "", 1, 0.5, None, [1, "2"]]
)
def test_the_command_sets_the_same_values(value: object) -> None:
    options = options_of(declared(config={"a": value}, folder=None), None)
    assert parse_settings(tuple(options[1::2])) == {"a": value}


def test_the_command_names_a_snapshot_that_is_not_just_the_newest() -> None:
    options = options_of(declared(config={}, folder=None), None, names_snapshot=True)
    assert options == ["--snapshot", TRAIN.snapshot_id[:12]]


def test_a_script_alone_cannot_be_certified_and_the_refusal_says_so() -> None:
    words = command_of("tests", [], declared(folder="/home/ann/gpt", program=SCRIPT))
    assert "`tracks init` in its folder makes a project of it" in words


def test_a_refusal_names_the_rule_each_gate_and_the_command() -> None:
    closed = {"tests": "none of this code", "canary": "there is none of this project"}
    options = ["--project", "my model", "--set", "lr=0.1"]
    mine = declared(folder="my model")
    commands = {gate: command_of(gate, options, mine) for gate in closed}
    assert refusal("big-1", "full", closed, commands) == (
        "Refused by policy stages.full.needs: big-1 was not shown to be ready.\n"
        "  tests: none of this code; `pytest --tracks` in my model.\n"
        "  canary: there is none of this project; `tracks canary --project 'my model' --set lr=0.1`.\n"
        '--skip-gate tests --skip-gate canary --why "…" declares it anyway; the gate and the reason '
        "are recorded."
    )
