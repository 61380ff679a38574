"""A code server that does not answer: people are warned, and the attempt trains once."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import pytest

from tests.integration.homes import COMMAND_S_MAX, Home, embedded, outcome, wait_for
from tracks_dagster.attempts.effects.heartbeat import read_heartbeat
from tracks_dagster.processes.process import Process, describe_process
from tracks_dagster.wings.embedded.edge.one_code_server import CODE_SERVER
from tracks_dagster.wiring import open_dagster_home

DAGSTERS_OWN = "dagster api grpc"

pytestmark = [pytest.mark.full, pytest.mark.timeout(2 * COMMAND_S_MAX)]


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Everything in one folder, for a daemon of its own."""
    return embedded(tmp_path_factory.mktemp("late"))


def code_servers(daemon: Process) -> list[int]:
    """Return the pids of the daemon's code servers: ours and its twin, from which run workers are
    forked, or Dagster's own."""
    names = (CODE_SERVER, DAGSTERS_OWN)
    return [p for p in daemon.group if any(name in describe_process(p) for name in names)]


def waits_for(home: Home) -> str:
    line = home.line("frozen")
    return "" if line is None else line.waiting_for or ""


def test_a_launch_that_nobody_answers_is_reported_and_the_attempt_trains_once(home: Home) -> None:
    with home.daemon():
        daemon = open_dagster_home(home.settings).find_daemon()
        assert daemon is not None
        wait_for(lambda: read_heartbeat(home.app.store) is not None)
        frozen: set[int] = set()

        def is_warned() -> bool:
            for pid in code_servers(daemon):
                os.kill(pid, signal.SIGSTOP)
                frozen.add(pid)
            return waits_for(home) != ""

        is_warned()
        command = home.run("frozen")
        try:
            wait_for(is_warned)
            result = waits_for(home)
        finally:
            for pid in frozen:
                with suppress(ProcessLookupError):  # the daemon may have replaced it
                    os.kill(pid, signal.SIGCONT)
        [only] = outcome(command)["attempts"]
    print(result)
    assert result.startswith("waiting: no daemon has ticked since ")
    assert (only["termination_reason"], only["kept_steps"]) == ("completed", 40)
    [attempt] = home.app.tracks.run("frozen").attempts
    assert len(attempt.claims) == 1
    heartbeat = read_heartbeat(home.app.store)
    assert heartbeat is not None
    assert list(heartbeat.launches) == []  # and nothing more is said of it
