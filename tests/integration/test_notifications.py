"""A fault in a gang, and who hears of it, by the real daemon, which is killed before it has sent.

The time from the fault to the message is printed: the sensors' pace bounds it, a busy machine may not.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.homes import COMMAND_S_MAX, Home, embedded, outcome, wait_for
from tests.ports import free_port
from tests.receivers import hook_server
from tracks_dagster.attempts.drills import BY as DRILLS
from tracks_dagster.track.names import ALERT_LOSS_SPIKE, ALERT_SLOW_RANK
from tracks_dagster.wiring import open_dagster_home

TRAINER = Path(__file__).with_name("forward_trainer.py")

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


@pytest.mark.drawn(1)
@pytest.mark.parametrize("is_killed", [False, True], ids=["daemon lives", "daemon is killed"])
def test_under_tracks_up_a_slow_rank_reaches_a_person_with_links_to_both_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_killed: bool
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    home = embedded(tmp_path)
    home.settings.home.mkdir()
    with hook_server() as hook, up(home) as (address, board):
        file = home.settings.home / "notify.yaml"
        file.write_text(f"- {{name: oncall, to: '{hook.url}', rule: {ALERT_SLOW_RANK}}}\n")
        size = ("--ranks", "2", "--steps", "2000", "--checkpoint-every", "1000", "--seed", "7")
        config = ("--set", "forward_s=0.2", "--set", "global_batch=16")
        drill = ("--intent", "A run of the tests.", "--drill", "slow@20,rank=1,factor=3")
        command = home.start(
            "run", "--run-id", "slow", "--trainer", str(TRAINER), *size, *config, *drill
        )
        wait_for(lambda: is_placed(home) or command.poll() is not None)
        command.kill()  # who declares a run need not stay
        _, stderr = command.communicate()
        assert is_placed(home), stderr
        hook.hangs = is_killed
        wait_for(lambda: hook.asked > 0)
        if is_killed:  # the record is there, and nothing was taken
            daemon = open_dagster_home(home.settings).find_daemon()
            assert daemon is not None
            os.killpg(daemon.pid, signal.SIGKILL)
            hook.hangs = False
        wait_for(lambda: bool(hook.got))
        assert home.call("stop", "slow", "--why", "The test is over.").returncode == 0
        wait_for(lambda: home.app.tracks.run("slow").finished is not None)
    state = home.app.tracks.run("slow")
    fired_at = next(note.at for note in state.notes if note.body.by == DRILLS)
    [alert] = [each for each in state.alerts if each.body.rule == ALERT_SLOW_RANK]
    print(
        f"\nfrom the fault to its record: {(alert.at - fired_at).total_seconds():.1f} s, ", end=""
    )
    print(f"to its message: {hook.got_at[0] - fired_at.timestamp():.1f} s")
    assert set(hook.keys) == {f"runs/slow/{alert.seq}"}
    message = hook.got[0]
    assert message["sentence"].startswith("Local: rank 1 on ")
    assert message["advice"].partition(";")[0] in ("continue", "retune")
    assert message["link"] == f"{board}/runs/slow"
    assert message["links"][1].startswith(f"{address}/assets/training_attempts?")


@contextmanager
def up(home: Home) -> Iterator[tuple[str, str]]:
    """Hold `tracks up`; yield the addresses of the UI and of the board."""
    server = home.start("up", "--port", str(free_port()))
    assert server.stdout is not None
    try:
        address, board = (server.stdout.readline().split()[0] for _ in range(2))
        yield address, board
    finally:
        server.terminate()
        server.communicate(timeout=COMMAND_S_MAX)


def is_placed(home: Home) -> bool:
    """Whether the run's gang has its place."""
    state = home.app.tracks.find_run("slow")
    attempt = None if state is None else state.open_attempt
    return attempt is not None and attempt.placed is not None
