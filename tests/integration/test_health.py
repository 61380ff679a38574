"""A slow rank in a gang of eight is found while it trains, by name and cause, in one alert."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.integration.homes import COMMAND_S_MAX, Home, embedded
from tracks_dagster.ledger.effects.deciding import decide_due
from tracks_dagster.track.states.alerts import AlertState
from tracks_dagster.wings.watch.health.effects.watch import WatchHealth

pytestmark = pytest.mark.full
TRAINER = Path(__file__).with_name("forward_trainer.py")
OURS = ("slow_rank", "step_time", "data_wait")
FAULT, WITHIN = 20, 30  # steps


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return embedded(tmp_path)


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("drill", "rule", "words"),
    [
        ("slow@20,rank=5,factor=2", "slow_rank", ("Local: rank 5 on ", "compute")),
        ("data_slow@20,rank=5,factor=2", "slow_rank", ("Local: rank 5 on ", "data")),
        ("slow@20,factor=2", "step_time", ("Systemic: ", "compute")),
    ],
)
def test_what_is_slow_is_one_alert_within_thirty_steps(
    home: Home, drill: str, rule: str, words: tuple[str, str]
) -> None:
    size = ("--ranks", "8", "--steps", "70", "--checkpoint-every", "1000", "--seed", "7")
    config = ("--set", "forward_s=0.2", "--set", "global_batch=16")
    script = ("--trainer", str(TRAINER), "--intent", "A run of the tests.", "--json")
    command = home.start("run", "--run-id", "r-1", *size, *config, *script, "--drill", drill)
    try:
        alerts = watched(home, command)
    finally:
        command.terminate()
        command.communicate(timeout=COMMAND_S_MAX)
    found = [each for each in alerts if each.body.rule in OURS]
    assert [each.body.rule for each in found] == [rule], [each.body.text for each in found]
    [alert] = found
    assert alert.body.text.startswith(words[0]), alert.body.text
    assert alert.body.data["cause"] == words[1]
    assert FAULT < alert.body.data["step"] <= FAULT + WITHIN


def watched(home: Home, command) -> tuple[AlertState, ...]:  # type: ignore[no-untyped-def]
    """Look at the run every second until it is over, beside its own daemon; return its alerts."""
    watch, give_up_at = WatchHealth(), time.monotonic() + COMMAND_S_MAX
    while command.poll() is None and time.monotonic() < give_up_at:
        if home.app.tracks.find_run("r-1") is not None:
            decide_due(home.app.world(home.app.policy), [watch])
        time.sleep(1.0)
    return home.app.tracks.run("r-1").alerts
