"""What crashes and races of the real daemon do to a run: nothing but time is lost."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from dagster import DagsterInstance

from tests.integration.homes import COMMAND_S_MAX, Home, outcome, wait_for
from tracks_dagster.track import names
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.wiring import open_dagster_home

pytestmark = [pytest.mark.full, pytest.mark.timeout(2 * COMMAND_S_MAX)]

TERM_S_MAX = 60.0


@pytest.mark.drawn(1)
@pytest.mark.parametrize("storage", ["embedded_home", "server_home"])
def test_two_daemons_open_every_retry_once(storage: str, request: pytest.FixtureRequest) -> None:
    home: Home = request.getfixturevalue(storage)
    with second_daemon(home):
        run = outcome(
            home.run("two-daemons", "--drill", "preempt@23,grace=0", "--drill", "gpu_oom@31")
        )
    reasons = [attempt["termination_reason"] for attempt in run["attempts"]]
    assert reasons == ["preempted", "gpu_oom", "completed"]
    # Both daemons may request a Dagster run for one attempt: the newer claim supervises it, and
    # there is one gang anyway.
    assert [launches(home, "two-daemons", number) for number in (1, 2, 3)] == [1, 1, 1]
    state = folded(home, "two-daemons")
    assert len(state.promotions) == len(state.evals) == 1


def test_a_killed_run_worker_is_replaced_and_its_gang_trains_on(
    embedded_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = embedded_home  # which storage Dagster has changes nothing here
    command = home.run("orphaned", "--steps", "600", "--checkpoint-every", "200")
    wait_for(lambda: (line := home.line("orphaned")) is not None and bool(line.step))
    attempt = folded(home, "orphaned").attempts[0]
    [first] = attempt.claims
    os.kill(worker_pid(home, first.body.dagster_run_id, monkeypatch), signal.SIGKILL)
    run = outcome(command)
    [only] = run["attempts"]
    assert (only["termination_reason"], only["kept_steps"]) == ("completed", 600)
    after = folded(home, "orphaned").attempts[0]
    assert len(after.claims) == 2
    assert after.placed == attempt.placed  # the gang that was adopted, not another one


def launches(home: Home, run_id: str, attempt_id: int) -> int:
    """Return how many launches of an attempt ever wrote a line of a journal."""
    journals = re.compile(rf"runs/{run_id}/attempts/{attempt_id}/(\w+)/journal/")
    keys = home.app.store.list(f"runs/{run_id}/attempts/{attempt_id}/")
    return len({found[1] for key in keys if (found := journals.match(key))})


def folded(home: Home, run_id: str) -> RunState:
    """Return the run as its track tells it."""
    return home.app.tracks.run(run_id)


def worker_pid(home: Home, dagster_run_id: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the pid of a Dagster run's worker, from Dagster's own event."""
    environment = open_dagster_home(home.settings).environment
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with DagsterInstance.from_config(environment["DAGSTER_HOME"]) as instance:
        run = instance.get_run_by_id(dagster_run_id)
        assert run is not None
        assert run.tags[names.TAG_ATTEMPT]
        messages = [entry.message for entry in instance.all_logs(dagster_run_id)]
    [found] = [m for text in messages if (m := re.search(r"Started process.*pid: (\d+)", text))]
    return int(found[1])


@contextmanager
def second_daemon(home: Home) -> Iterator[None]:
    """Keep a daemon on this home that the home does not know of; Dagster complains in its log."""
    dagster = open_dagster_home(home.settings)
    daemon = subprocess.Popen(
        [sys.executable, "-m", "dagster._daemon", "run", "-w", "workspace.yaml"],
        cwd=home.settings.root,
        env=dagster.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
        assert daemon.poll() is None, "the second daemon ended early, so nothing was tested"
    finally:
        daemon.send_signal(signal.SIGTERM)
        try:
            daemon.wait(timeout=TERM_S_MAX)
        finally:
            _kill_group(daemon.pid)


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
