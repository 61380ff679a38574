"""A script in nanoGPT's shape, preempted and killed: equal to the bit, and nothing of ours is recorded.

The test plays the daemon: it supervises each attempt and opens the next.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.fakes import FakeOrchestrator
from tests.real.nanogpt import TRAIN, changed_lines, joined, write_project
from tracks_dagster.attempts.effects.supervise import Supervisor
from tracks_dagster.cli import main
from tracks_dagster.cli.start import run as run_command
from tracks_dagster.cli.start.follow import Followed
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.settings import Settings
from tracks_dagster.stores.journals import StepLine, read_steps
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.training.saves.manifest import weights_sha256
from tracks_dagster.wiring import App, build

pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
STEPS = 18


def test_six_changed_lines_make_it_equal_to_the_bit_after_a_preemption_and_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert changed_lines(TRAIN, joined()) <= 6
    folder, data = tmp_path / "nano", tmp_path / "data"
    commit = write_project(folder, data)
    monkeypatch.setenv("TRACKS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "10000")
    monkeypatch.chdir(folder)
    followed = Followed(state="waiting", is_drained=False, waited_for=None)
    monkeypatch.setattr(run_command, "drive", lambda *_, **__: followed)
    call("snapshots", "add", "tokens", str(data))
    call("run", "--run-id", "calm")
    call("run", "--run-id", "shaken", "--drill", "preempt@7", "--drill", "sigkill@13")
    app = build(Settings.from_environment())
    calm, shaken = supervised(app, "calm"), supervised(app, "shaken")
    assert [attempt.reason for attempt in calm.attempts] == ["completed"]
    assert [attempt.reason for attempt in shaken.attempts][::2] == ["preempted", "completed"]

    expected = curve(app, calm)
    assert sorted(expected) == list(range(1, STEPS + 1))
    assert curve(app, shaken) == expected
    assert final_weights(app, shaken) == final_weights(app, calm)
    told = json.loads(call("explain", "shaken/a03", "--json"))
    assert told["resumed"]["continuity"]["agree"]

    assert (told["code"]["git_commit"], told["code"]["dirty"]) == (commit, False)
    assert told["data"]["dataset"] == "tokens"
    assert told["tried"]["config"] == {
        "batch_size": 4,
        "gradient_accumulation_steps": 2,
        "learning_rate": 1e-3,
        "max_iters": STEPS,
        "seed": 1337,
    }
    assert "code_sha256" not in told["where"]["environment"]
    text = call("explain", "shaken", "--full")
    assert commit[:12] in text
    assert ours()[:12] not in text
    assert "aws-docs" not in text


def call(*arguments: str) -> str:
    """Call `tracks`, and return what it printed."""
    result = CliRunner().invoke(main, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in (0, 1), result.output
    return result.stdout


def supervised(app: App, run_id: str) -> RunState:
    """Supervise attempt after attempt until one has all steps."""
    for attempt_id in range(1, 4):
        attempt = Supervisor(
            tracks=app.tracks,
            gangs=app.launcher_of("local"),
            orchestrator=FakeOrchestrator(),
            foresee=lambda trainer, python: app.foresee("local", trainer, python),
            policy=DEFAULT_POLICY,
            dagster_run_id="mine",
            host="here",
            sleep=time.sleep,
            on_growth=lambda state: None,
        ).supervise(run_id, attempt_id)
        assert attempt is not None
        if attempt.reason == "completed":
            break
        call("retry", run_id, "--why", "It is to go on.")
    return app.tracks.run(run_id)


def curve(app: App, state: RunState) -> dict[int, tuple[float, float]]:
    """Return loss and learning rate of each step, as the newest attempt that ran it had them."""
    found: dict[int, StepLine] = {}
    for attempt in state.attempts:
        assert attempt.placed is not None
        launch = attempt.placed.launch_id
        for line in read_steps(app.store, state.run_id, attempt.attempt_id, launch):
            found[line.step] = line
    return {step: (line.loss, line.metrics["lr"]) for step, line in found.items()}


def final_weights(app: App, state: RunState) -> Json:
    final = state.checkpoints[-1].ref
    assert final.step == STEPS
    return weights_sha256(app.store, final)


def ours() -> str:
    """Return the commit of the checkout that runs the tests."""
    done = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()
