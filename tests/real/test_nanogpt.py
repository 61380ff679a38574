"""A script in nanoGPT's shape, preempted and killed: equal to the bit, with a record of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.real.nanogpt import TRAIN, changed_lines, joined, write_project
from tests.real.played import call, curves, explained, play, play_at
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.training.saves.manifest import weights_sha256
from tracks_dagster.wiring import App

pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
STEPS = 18


def test_six_changed_lines_make_it_equal_to_the_bit_after_a_preemption_and_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert changed_lines(TRAIN, joined()) <= 6
    folder, data = tmp_path / "nano", tmp_path / "data"
    commit = write_project(folder, data)
    app = play_at(tmp_path / "home", monkeypatch)
    monkeypatch.chdir(folder)
    call("snapshots", "add", "tokens", str(data))
    call("run", "--run-id", "calm")
    call("run", "--run-id", "shaken", "--drill", "preempt@7", "--drill", "sigkill@13")
    calm, shaken = play(app, "calm"), play(app, "shaken")
    assert [attempt.reason for attempt in calm.attempts] == ["completed"]
    assert [attempt.reason for attempt in shaken.attempts][::2] == ["preempted", "completed"]

    expected = newest(app, calm)
    assert sorted(expected) == list(range(1, STEPS + 1))
    assert newest(app, shaken) == expected
    assert final_weights(app, shaken) == final_weights(app, calm)
    result = explained("shaken/a03")
    assert result["resumed"]["continuity"]["agree"]

    assert (result["code"]["git_commit"], result["code"]["dirty"]) == (commit, False)
    assert result["data"]["dataset"] == "tokens"
    assert result["tried"]["config"] == {
        "batch_size": 4,
        "gradient_accumulation_steps": 2,
        "learning_rate": 1e-3,
        "max_iters": STEPS,
        "seed": 1337,
    }
    assert "code_sha256" not in result["where"]["environment"]
    text = call("explain", "shaken", "--full")
    assert commit[:12] in text
    assert ours()[:12] not in text
    assert "aws-docs" not in text


def newest(app: App, state: RunState) -> dict[int, tuple[float, float]]:
    """Return loss and learning rate of each step, as the newest attempt that ran it had them."""
    return {
        step: (line.loss, line.metrics["lr"])
        for curve in curves(app, state)
        for step, line in curve.items()
    }


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
