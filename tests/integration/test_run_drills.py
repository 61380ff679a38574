"""Whole runs through faults, with the real daemon: the resumed run equals the undisturbed one.

The long form of test_whole_run.py: one to three ranks on both storages, preemptions with grace and
without, an OOM while its sensor is off, Ctrl-C and a killed command.
"""

from __future__ import annotations

import json
import signal

import pytest

from tests.integration.homes import (
    COMMAND_S_MAX,
    Home,
    finished,
    losses,
    outcome,
    wait_for,
)
from tracks_dagster.track.records import Json

pytestmark = [pytest.mark.full, pytest.mark.timeout(2 * COMMAND_S_MAX)]

LOST = "preempt@23,grace=0"


@pytest.fixture
def home(request: pytest.FixtureRequest) -> Home:
    """A home on either storage."""
    found: Home = request.getfixturevalue(request.param)
    return found


def check_resumed(resumed: Json, plain: Json, *, lost_steps: int) -> None:
    """Assert that a run that was preempted after step 23 went on exactly."""
    first, second = resumed["attempts"]
    assert first["termination_reason"] == "preempted"
    assert (first["last_step"], first["lost_steps"]) == (23, lost_steps)
    assert second["resumed_from_step"] == 23 - lost_steps
    if lost_steps:
        assert second["continuity"] == {
            "steps_compared": lost_steps,
            "agree": True,
            "first_difference": None,
            "reason": None,
            "other_code": None,
        }
    for digest in ("weights_sha256", "samples_sha256"):
        assert resumed["final"][digest] == plain["final"][digest]


def test_an_oom_waits_for_its_sensor_and_then_goes_on_with_the_same_samples(
    server_home: Home,
) -> None:
    plain = outcome(server_home.run("plain", "--ranks", "2"))
    server_home.dagster("sensor", "stop", "retry_oom")
    command = server_home.run("oom", "--ranks", "2", "--drill", "gpu_oom@31")
    try:
        wait_for(lambda: _waits_for(server_home, "oom") == "waiting: sensor retry_oom is off")
        assert "waiting: sensor retry_oom is off" in server_home.call("status", "oom").stdout
    finally:
        server_home.dagster("sensor", "start", "retry_oom")
    run = outcome(command)
    first, second = run["attempts"]
    assert (first["termination_reason"], second["termination_reason"]) == ("gpu_oom", "completed")
    assert run["final"]["samples_sha256"] == plain["final"]["samples_sha256"]
    changes = {
        change["key"]: (change["before"], change["after"])
        for change in _explained(server_home, "oom/a02")["tried"]["changes"]
    }
    assert changes == {"micro_batch": (4, 2), "accumulation": (3, 6)}  # 2 ranks × 4 × 3 = 24


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("home", "ranks"),
    [("embedded_home", "1"), ("embedded_home", "2"), ("server_home", "3")],
    indirect=["home"],
)
def test_every_rank_count_resumes_exactly_with_grace_and_without(home: Home, ranks: str) -> None:
    plain = outcome(home.run(f"plain-{ranks}", "--ranks", ranks))
    undisturbed = losses(home, f"plain-{ranks}")
    assert [step for step, _ in undisturbed] == list(range(1, 41))
    for name, drill, lost_steps in (("grace", "preempt@23", 0), ("lost", LOST, 3)):
        run_id = f"{name}-{ranks}"
        resumed = outcome(home.run(run_id, "--ranks", ranks, "--drill", drill))
        check_resumed(resumed, plain, lost_steps=lost_steps)
        assert losses(home, run_id) == undisturbed


def test_code_that_fails_before_the_first_step_is_refused_a_retry(embedded_home: Home) -> None:
    refused = outcome(embedded_home.run("refused", "--drill", "code_error@0"), exit_code=1)
    assert refused["state"] == "refused"
    [attempt] = refused["attempts"]
    assert (attempt["termination_reason"], attempt["last_step"]) == ("code_error", None)
    explained = embedded_home.call("explain", "refused").stdout
    assert "RuntimeError: drill code_error@0" in explained
    assert "tracks retry refused" in explained
    assert len(explained.splitlines()) <= 25
    full = embedded_home.call("explain", "refused", "--full").stdout
    assert "> RuntimeError: drill code_error@0" in full


def test_ctrl_c_drains_and_the_run_is_taken_up_to_the_same_weights(embedded_home: Home) -> None:
    many = ("--steps", "600")  # more than any machine takes before it hears of the drain
    plain = outcome(embedded_home.run("plain-of-ctrl-c", *many))
    command = embedded_home.run("ctrl-c", *many)
    wait_for(lambda: _step(embedded_home, "ctrl-c") >= 10)
    command.send_signal(signal.SIGINT)
    done = finished(command)
    assert done.returncode == 1
    assert "To continue: tracks run --run-id ctrl-c" in done.stderr
    taken_up = outcome(embedded_home.run("ctrl-c", *many))
    assert taken_up["attempts"][0]["termination_reason"] == "user_cancelled"
    assert taken_up["attempts"][0]["lost_steps"] == 0
    assert taken_up["final"] | {"manifest_sha256": ""} == plain["final"] | {"manifest_sha256": ""}


def test_a_killed_command_loses_nothing(embedded_home: Home) -> None:
    command = embedded_home.run("killed", "--drill", LOST)
    wait_for(lambda: embedded_home.line("killed") is not None)
    command.kill()
    finished(command)
    taken_up = outcome(embedded_home.run("killed"))
    assert taken_up["state"] == "succeeded"
    assert len(taken_up["attempts"]) == 2


def _explained(home: Home, target: str) -> Json:
    return json.loads(home.call("explain", target, "--json").stdout)


def _waits_for(home: Home, run_id: str) -> str | None:
    line = home.line(run_id)
    return line.waiting_for if line else None


def _step(home: Home, run_id: str) -> int:
    line = home.line(run_id)
    return line.step or 0 if line else 0
