"""`tracks run` without a daemon: the test supervises each attempt, and the retries decide the next."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.fakes import FakeOrchestrator
from tracks_dagster.attempts.effects.retry import Retries
from tracks_dagster.attempts.effects.supervise import Supervisor
from tracks_dagster.cli import main
from tracks_dagster.cli.start import run as run_command
from tracks_dagster.cli.start.follow import Followed
from tracks_dagster.ledger.effects.deciding import WAITING, settle
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.settings import Settings
from tracks_dagster.stores.journals import StepLine, read_steps
from tracks_dagster.track.bodies import ComputeRequest
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.wiring import App, build

ATTEMPTS_MAX = 5
DECIDE_S_MAX = 120.0  # a retry waits for its backoff
POLL_S = 0.5


def play_at(home: Path, monkeypatch: pytest.MonkeyPatch) -> App:
    """Return the application on a home of its own, on which `tracks run` only declares."""
    followed = Followed(state="waiting", is_drained=False, waited_for=None)
    monkeypatch.setattr(run_command, "drive", lambda *_, **__: followed)
    monkeypatch.setenv("TRACKS_HOME", str(home))
    monkeypatch.setenv("COLUMNS", "10000")
    return build(Settings.from_environment())


def call(*arguments: str) -> str:
    """Call `tracks`, and return what it printed."""
    result = CliRunner().invoke(main, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in (0, 1), result.output
    return result.stdout


def explained(target: str) -> Json:
    """Return what `tracks explain` knows of a run or an attempt."""
    return json.loads(call("explain", target, "--json"))


def play(app: App, run_id: str) -> RunState:
    """Supervise attempt after attempt, as the retries open them, until the run is finished."""
    for attempt_id in range(1, ATTEMPTS_MAX + 1):
        Supervisor(
            tracks=app.tracks,
            gangs=app.launcher_of("local"),
            orchestrator=FakeOrchestrator(),
            foresee=lambda trainer, python: app.foresee(ComputeRequest(), trainer, python),
            policy=DEFAULT_POLICY,
            dagster_run_id="mine",
            host="here",
            sleep=time.sleep,
            on_growth=lambda state: None,
        ).supervise(run_id, attempt_id)
        give_up_at = time.monotonic() + DECIDE_S_MAX
        while (found := settle(app.world(DEFAULT_POLICY), Retries(name="tests"), run_id)).what == (
            WAITING
        ):
            assert time.monotonic() < give_up_at, found.why
            time.sleep(POLL_S)
        if (state := app.tracks.run(run_id)).finished is not None:
            return state
    raise AssertionError(f"{run_id} is not finished: {call('explain', run_id)}")


def curves(app: App, state: RunState) -> list[dict[int, StepLine]]:
    """Return the steps that each attempt ran, by number."""
    found = []
    for attempt in state.attempts:
        assert attempt.placed is not None
        launch_id = attempt.placed.launch_id
        lines = read_steps(app.store, AttemptRef(state.run_id, attempt.attempt_id), launch_id)
        found.append({line.step: line for line in lines})
    return found
