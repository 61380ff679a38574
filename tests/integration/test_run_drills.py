"""Whole runs through faults, with the real daemon: the resumed run equals the undisturbed one.

The default set runs on 2 ranks with a preemption without grace, on Postgres and S3 (test_ui.py has an
OOM too, on a home in one folder). `--full` adds an OOM here, other rank counts, a preemption with
grace, Ctrl-C and a killed command.
"""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.homes import COMMAND_S_MAX, Home, finished, outcome, wait_for
from tracks_dagster.ledger.effects.database import open_ledger
from tracks_dagster.track.records import Json

pytestmark = pytest.mark.timeout(2 * COMMAND_S_MAX)

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
        }
    for digest in ("weights_sha256", "samples_sha256"):
        assert resumed["final"][digest] == plain["final"][digest]


@dataclass(frozen=True)
class Outcomes:
    """Of an undisturbed run, of one that lost steps, and of one whose code failed at once."""

    plain: Json
    lost: Json
    refused: Json


@pytest.fixture(scope="module")
def outcomes(server_home: Home) -> Outcomes:
    """Three runs of one home, each trained once."""
    # The first run makes the snapshots of the empty home; after that all may go on at once.
    plain = server_home.run("plain", "--ranks", "2")
    wait_for(lambda: server_home.line("plain") is not None)
    lost = server_home.run("lost", "--ranks", "2", "--drill", LOST)
    refused = server_home.run("refused", "--drill", "code_error@0")
    return Outcomes(plain=outcome(plain), lost=outcome(lost), refused=outcome(refused, exit_code=1))


def test_a_run_that_lost_steps_ends_with_the_weights_of_the_undisturbed_one(
    outcomes: Outcomes,
) -> None:
    plain, lost = outcomes.plain, outcomes.lost
    [only] = plain["attempts"]
    assert (only["kept_steps"], only["lost_steps"], only["continuity"]) == (40, 0, None)
    check_resumed(lost, plain, lost_steps=3)
    for run in (plain, lost):
        assert run["state"] == "succeeded"
        assert [e["checkpoint_step"] for e in run["evals"]] == [40]
        assert run["promotion"]["manifest_sha256"] == run["final"]["manifest_sha256"]


@pytest.mark.usefixtures("outcomes")
def test_a_ledger_built_from_nothing_equals_the_one_that_grew(
    server_home: Home, tmp_path: Path
) -> None:
    assert server_home.call("fsck").returncode == 0
    server_home.call("reindex")  # what the last run's end left unprojected
    grown = open_ledger(server_home.settings.ledger_url).dump()
    places = {"TRACKS_STORE": server_home.settings.store_url, "TRACKS_POSTGRES_URL": ""}
    fresh = Home({**server_home.variables, **places, "TRACKS_HOME": str(tmp_path)})
    assert fresh.call("reindex").returncode == 0
    assert open_ledger(fresh.settings.ledger_url).dump() == grown
    assert len(grown["training_runs"]) >= 2


def test_code_that_fails_before_the_first_step_is_refused_a_retry(
    server_home: Home, outcomes: Outcomes
) -> None:
    refused = outcomes.refused
    assert refused["state"] == "refused"
    [attempt] = refused["attempts"]
    assert (attempt["termination_reason"], attempt["last_step"]) == ("code_error", None)
    told = server_home.call("explain", "refused").stdout
    assert "RuntimeError: drill code_error@0" in told
    assert "tracks retry refused" in told
    assert len(told.splitlines()) <= 25
    full = server_home.call("explain", "refused", "--full").stdout
    assert "> RuntimeError: drill code_error@0" in full


@pytest.mark.full
def test_an_oom_waits_for_its_sensor_and_then_goes_on_with_the_same_samples(
    server_home: Home, outcomes: Outcomes
) -> None:
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
    assert run["final"]["samples_sha256"] == outcomes.plain["final"]["samples_sha256"]
    changes = {
        change["key"]: (change["before"], change["after"])
        for change in _explained(server_home, "oom/a02")["tried"]["changes"]
    }
    assert changes == {"micro_batch": (4, 2), "accumulation": (3, 6)}  # 2 ranks × 4 × 3 = 24


@pytest.mark.full
@pytest.mark.parametrize(
    ("home", "ranks"),
    [("embedded_home", "1"), ("embedded_home", "2"), ("server_home", "3")],
    indirect=["home"],
)
def test_every_rank_count_resumes_exactly_with_grace_and_without(home: Home, ranks: str) -> None:
    plain = outcome(home.run(f"plain-{ranks}", "--ranks", ranks))
    for name, drill, lost_steps in (("grace", "preempt@23", 0), ("lost", LOST, 3)):
        run_id = f"{name}-{ranks}"
        resumed = outcome(home.run(run_id, "--ranks", ranks, "--drill", drill))
        check_resumed(resumed, plain, lost_steps=lost_steps)


@pytest.mark.full
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


@pytest.mark.full
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
