"""Postgres is restarted, killed, stopped, read-only and full while a run of two ranks trains on.

The server is Debian's where it is installed. The store is a folder: a reader that shares no code with
the product reads its bytes after, and the weights are compared with those of an undisturbed run.

TRACKS_OUTAGE_SEED=n repeats one order of the outages.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.homes import COMMAND_S_MAX, Home, embedded, finished, outcome, wait_for
from tests.integration.paced import paced, step_of
from tests.postgres_server import OwnPostgres, find_programs, own_postgres
from tests.real.raw_store import RawFolder, violations, weights_digest

STEPS = 800
PACE_S = 0.25  # so the undisturbed run takes more than three minutes
STOPPED_S = 45.0
AWAY_S = 15.0  # of the shorter outages
RUN = "outage"

pytestmark = [pytest.mark.full, pytest.mark.timeout(3 * COMMAND_S_MAX)]


@contextmanager
def restarted(server: OwnPostgres) -> Iterator[str]:
    """Away for a while, in order."""
    server.stop()
    yield "see that the server is up"
    server.start()


@contextmanager
def killed(server: OwnPostgres) -> Iterator[str]:
    """kill -9 of all of it, then away for a while."""
    server.kill(signal.SIGKILL)
    yield "see that the server is up"
    server.start()


@contextmanager
def stopped(server: OwnPostgres) -> Iterator[str]:
    """SIGSTOP of all of it: it takes connections and says nothing."""
    server.kill(signal.SIGSTOP)
    yield "timeout expired"
    time.sleep(STOPPED_S - AWAY_S)
    server.kill(signal.SIGCONT)


@contextmanager
def read_only(server: OwnPostgres) -> Iterator[str]:
    """It answers and takes no writes."""
    server.execute("alter system set default_transaction_read_only = on", "select pg_reload_conf()")
    yield ""  # a command that only reads goes on
    server.execute(
        "set transaction_read_only = off",
        "alter system reset default_transaction_read_only",
        "select pg_reload_conf()",
    )


@contextmanager
def full(server: OwnPostgres) -> Iterator[str]:
    """No connection more for this role, and those that it has are ended."""
    ends = "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'tracks'"
    server.execute("alter role tracks connection limit 0", ends)
    yield "end other clients"
    server.execute("alter role tracks connection limit -1")


OUTAGES = (restarted, killed, stopped, read_only, full)


def test_a_run_trains_to_its_end_through_outages_of_postgres(tmp_path: Path) -> None:
    seed = int(os.environ.get("TRACKS_OUTAGE_SEED") or random.SystemRandom().randrange(2**32))
    print(f"\nTRACKS_OUTAGE_SEED={seed}")
    plain = embedded(tmp_path / "plain")
    with (
        paced(plain, RUN, steps=STEPS, pace_s=0.0) as calm,
        own_postgres(find_programs()) as server,
    ):
        server.execute("create role tracks login", "create database tracks owner tracks")
        url = {"TRACKS_POSTGRES_URL": server.url("tracks", user="tracks")}
        home = Home({**embedded(tmp_path).variables, **url})
        with paced(home, RUN, steps=STEPS, pace_s=PACE_S) as command:
            reader = without_postgres(home)
            wait_for(lambda: command.poll() is not None or step_of(reader, RUN) > 0)
            for outage in random.Random(seed).sample(OUTAGES, len(OUTAGES)):
                before = step_of(reader, RUN)
                with outage(server) as words:
                    check_words(home, words)
                    assert step_of(reader, RUN) > before, "the gang waits for Postgres"
                assert command.poll() is None, f"over in {outage.__name__}: {finished(command)}"
            ended = outcome(command)
        assert ended["state"] == "succeeded"
        assert home.call("fsck").returncode == 0
        assert outcome(calm)["state"] == "succeeded"
    raw = RawFolder(tmp_path / "home" / "store")
    assert violations(raw) == []
    undisturbed = RawFolder(tmp_path / "plain" / "home" / "store")
    assert weights_digest(raw, RUN) == weights_digest(undisturbed, RUN)
    print(f"attempts: {[each['termination_reason'] for each in ended['attempts']]}")


def check_words(home: Home, words: str) -> None:
    """Let the outage last, then ask; a command that cannot answer says so in a line."""
    time.sleep(AWAY_S)
    result = home.call("status")
    print(f"status says {result.stderr.strip()!r}")
    assert "Traceback" not in result.stderr
    assert words in result.stderr
    assert (result.returncode == 0) == (not words)


def without_postgres(home: Home) -> Home:
    """Return the home read without Postgres: journals and tracks are in the store alone."""
    ledger = Path(home.variables["TRACKS_HOME"]).parent / "reader"
    ledger.mkdir(exist_ok=True)
    store = str(Path(home.variables["TRACKS_HOME"]) / "store")
    return Home({"TRACKS_HOME": str(ledger), "TRACKS_STORE": store, "TRACKS_POSTGRES_URL": ""})
