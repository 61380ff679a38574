"""`tracks checkpoints advise`: the proposal first, then every number that it rests on."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.stories import RUN_ID, Story
from tracks_dagster.cli.data.checkpoint_upkeep import duration

# The story: saves that block 0.25 s, steps of 0.1 s; attempts of 28, 21 and 21 s, one preempted.
EXPOSURE_S = 70.0


def test_the_advice_names_its_numbers_and_where_they_come_from(story: Story, call: Call) -> None:
    result = call("checkpoints", "advise", RUN_ID)
    assert result.exit_code == 0
    assert f"{RUN_ID}: save every 12 steps, 5.92 s" in result.stdout  # √(2 · 0.25 · 70) = 5.916
    assert "Now it saves every 5 s" in result.stdout
    assert "median of 4 periodic saves of this run" in result.stdout
    assert (
        "pool local/cpu: 1 interruption (preempted 1) in 70 s of 3 attempts of 1 run"
        in result.stdout
    )
    assert "not counted as interruptions: completed 1, gpu_oom 1" in result.stdout
    assert "M rests on few interruptions (1)" in result.stdout


def test_the_same_as_json(story: Story, call: Call) -> None:
    advice = json.loads(call("checkpoints", "advise", RUN_ID, "--json").stdout)
    assert advice["pool"]["exposure_s"] == EXPOSURE_S
    assert advice["mean_time"]["seconds"] == EXPOSURE_S
    assert advice["interval_s"] == pytest.approx(math.sqrt(2 * 0.25 * EXPOSURE_S))
    assert advice["interval_steps"] == 12
    assert advice["saves"] == {"blocking_s": 0.25, "save_count": 4}
    assert advice["steps"] == {"step_s": 0.5, "step_count": 10, "attempt_id": 3}
    assert advice["now_loss"] > advice["expected_loss"] > 0


def test_an_unknown_run_and_a_home_without_a_ledger_are_wrong_use(
    story: Story, call: Call, home: Path
) -> None:
    assert call("checkpoints", "advise", "nobody").exit_code == 2
    for path in home.glob("ledger.db*"):
        path.unlink()
    result = call("checkpoints", "advise", RUN_ID)
    assert result.exit_code == 2
    assert "`tracks reindex` builds it" in result.stderr


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0001, "0.0001 s"),
        (0.25, "0.25 s"),
        (119.0, "119 s"),
        (1800.0, "30 min"),
        (9000.0, "2.5 h"),
        (864_000.0, "10 days"),
    ],
)
def test_durations_are_said_as_a_person_would(seconds: float, text: str) -> None:
    assert duration(seconds) == text
