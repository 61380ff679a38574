"""A fault in a gang, and who is told of it, by the real daemon, which is killed before it has sent.

The time from the record to the message is printed: the sensor's pace bounds it, a busy machine may not.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.integration.homes import COMMAND_S_MAX, Home, embedded, outcome, wait_for
from tests.receivers import hook_server
from tracks_dagster.track.names import ALERT_LOSS_SPIKE
from tracks_dagster.wiring import open_dagster_home

pytestmark = [pytest.mark.full, pytest.mark.timeout(2 * COMMAND_S_MAX)]


def test_a_daemon_that_is_killed_between_record_and_message_sends_it_when_it_is_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    home = embedded(tmp_path)
    with hook_server() as hook, open_dagster_home(home.settings).daemon() as dagster:
        file = home.settings.home / "notify.yaml"
        file.write_text(f"- {{name: oncall, to: '{hook.url}', also: [finished, promoted]}}\n")
        hook.hangs = True
        command = home.run("spiky", "--drill", "spike@25")
        wait_for(lambda: hook.asked > 0)  # the record is there, and nothing was taken
        daemon = dagster.find_daemon()
        assert daemon is not None
        os.killpg(daemon.pid, signal.SIGKILL)
        assert hook.got == []
        hook.hangs = False
        dagster.ensure_daemon()
        run = outcome(command)
        wait_for(lambda: {"finished", "promoted"} <= {each["event"] for each in hook.got})
    assert [each["termination_reason"] for each in run["attempts"]] == ["completed"]
    state = home.app.tracks.run("spiky")
    [spike] = [each for each in state.alerts if each.body.rule == ALERT_LOSS_SPIKE]
    times = [
        at
        for at, each in zip(hook.got_at, hook.got, strict=True)
        if each["key"] == f"runs/spiky/{spike.seq}"
    ]
    print(f"\nfrom the record to its message: {times[0] - spike.at.timestamp():.1f} s, with a kill")
    assert len(set(hook.keys)) == len(state.alerts) + 2
    assert len(times) == 1


def test_while_the_daemon_is_up_a_message_comes_soon_after_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    home: Home = embedded(tmp_path)
    with hook_server() as hook, open_dagster_home(home.settings).daemon():
        file = home.settings.home / "notify.yaml"
        file.write_text(f"- {{name: oncall, to: '{hook.url}'}}\n")
        outcome(home.run("spiky", "--drill", "spike@25"))
        wait_for(lambda: bool(hook.got))
    [spike] = [
        each for each in home.app.tracks.run("spiky").alerts if each.body.rule == ALERT_LOSS_SPIKE
    ]
    assert hook.keys.count(f"runs/spiky/{spike.seq}") == 1
    delay_s = hook.got_at[hook.keys.index(f"runs/spiky/{spike.seq}")] - spike.at.timestamp()
    print(f"\nfrom the record to its message: {delay_s:.1f} s")
