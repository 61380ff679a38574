"""Whole runs on a real Slurm: what a cluster does to a gang is named rightly, and doubles nothing.

Skipped in words where this machine has no Slurm. The rig's nodes are this machine several times.
"""

from __future__ import annotations

import getpass
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

import tracks_dagster
from tests.integration.homes import COMMAND_S_MAX, TRACKS, Home, embedded, wait_for
from tests.integration.paced import TRAINER
from tests.integration.pasting import blocks, terminal_of
from tests.ports import free_port
from tests.real.raw_store import RawFolder, violations, weights_digest
from tests.wings.slurm.rig import NODES, Rig, rig, why_none
from tracks_dagster.attempts.effects.heartbeat import HEARTBEAT_KEY
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.retry.limits import limits
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.records import parse_time
from tracks_dagster.track.states.run_state import AttemptState
from tracks_dagster.wings.slurm.submission import job_name
from tracks_dagster.wiring import open_dagster_home, utc_now

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(2 * COMMAND_S_MAX),
    pytest.mark.skipif(bool(why_none()), reason=why_none()),
]

ROOT = Path(tracks_dagster.__file__).parents[1]
PAGE = ROOT / "docs" / "slurm.md"
FIRST = "## 2. From `pip install` to the first exact resume\n"
SIZE = ("--ranks", "2", "--checkpoint-every", "20", "--memory", "2GiB", "--set", "seed=7")
SCRIPT = (str(TRAINER), "--set", "global_batch=24", "--intent", "A run of the tests.")
PACE_S = 0.1  # of a step: a checkpoint in two seconds
STEPS = 2000  # an attempt lasts longer than `tracks up` takes to come back
KILLS = 10  # of `tracks up`
AWAY_S = 120.0  # of a controller, while a gang trains
NEVER = datetime.min.replace(tzinfo=UTC)
# What sits in rank 1 until there is a file: then it takes more memory than its node was asked for.
SWELLS = """\
import ctypes, os, signal, threading, time

def swell():
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are for others
    while not os.path.exists({flag!r}):
        time.sleep(0.2)
    full = b"x" * (5 << 29)
    time.sleep(600)

def freeze():
    while not os.path.exists({flag!r} + "-frozen"):
        time.sleep(0.2)
    ctypes.PyDLL(None).sleep(3600)  # nothing of Python runs meanwhile, no handler of a signal either

if os.environ.get("RANK") == "1":
    for each in (swell, freeze):
        threading.Thread(target=each, daemon=True).start()
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A cluster whose accounts are this process's too."""
    with rig(tmp_path_factory.mktemp("slurm")) as found, pytest.MonkeyPatch.context() as patch:
        for name, value in found.environment.items():
            patch.setenv(name, value)  # for the daemon, and for the launcher in this process
        yield found


@pytest.fixture
def home(slurm: Rig, tmp_path: Path) -> Home:
    """An embedded home whose gangs are jobs of that cluster; nothing serves it yet."""
    found = embedded(tmp_path)
    found.settings.home.mkdir(parents=True, exist_ok=True)
    (tmp_path / "sitecustomize.py").write_text(SWELLS.format(flag=str(tmp_path / "swell")))
    file = found.settings.home / "slurm.yaml"
    settings = {
        "python": sys.executable,
        "partition": "low",
        "notice": "30s",
        "environment": {"PYTHONPATH": f"{tmp_path}:{ROOT}", "OMP_NUM_THREADS": "1"},
        "work": str(tmp_path),
    }
    file.write_text(yaml.safe_dump(settings))
    found.variables.update({"TRACKS_SLURM": str(file), **slurm.environment})
    return found


@dataclass
class Served:
    """`tracks up` on a home. kills: how often it was killed."""

    home: Home
    kills: int = 0
    _up: subprocess.Popen[bytes] | None = None
    _since: datetime = NEVER

    def start(self) -> None:
        """Start it."""
        self._since = datetime.now(UTC)
        self._up = subprocess.Popen(
            [*TRACKS, "up", "--port", str(free_port())],
            env={**os.environ, **self.home.variables},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def kill(self) -> None:
        """Kill it with its daemon, once that has come up, and start it again."""
        wait_for(self._has_ticked)
        self.kills += 1
        self._end(signal.SIGKILL)
        self.start()

    def stop(self) -> None:
        """End it, and what it started."""
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        assert self._up is not None
        daemon = open_dagster_home(self.home.settings).find_daemon()
        with suppress(ProcessLookupError):
            os.kill(self._up.pid, how)
        if how is signal.SIGKILL and daemon is not None:
            with suppress(ProcessLookupError):
                os.killpg(daemon.pid, how)
        self._up.wait(timeout=COMMAND_S_MAX)

    def _has_ticked(self) -> bool:
        beat = self.home.app.store.get(HEARTBEAT_KEY)
        return beat is not None and parse_time(json.loads(beat)["at"]) > self._since


@contextmanager
def served(home: Home) -> Iterator[Served]:
    """`tracks up` for the time of a test."""
    found = Served(home)
    found.start()
    try:
        yield found
    finally:
        found.stop()


def submit(home: Home, run_id: str, *more: str, steps: int = STEPS, pace_s: float = PACE_S) -> None:
    """Declare a run of two nodes with a rank each."""
    size = (*SIZE, "--set", f"steps={steps}", "--set", f"pace_s={pace_s}")
    done = home.call("submit", "--run-id", run_id, *SCRIPT, *size, "--on", "slurm", *more)
    assert done.returncode == 0, done.stderr


def attempts(home: Home, run_id: str) -> list[AttemptState]:
    state = home.app.tracks.find_run(run_id)
    return [] if state is None else list(state.attempts)


def commits(home: Home, run_id: str, attempt_id: int) -> int:
    state = home.app.tracks.find_run(run_id)
    found = () if state is None else state.checkpoints
    return sum(each.ref.attempt_id == attempt_id for each in found)


def reasons(home: Home, run_id: str) -> list[str | None]:
    return [each.reason for each in attempts(home, run_id)]


def trains(home: Home, run_id: str, attempt_id: int, *, more: int = 1) -> None:
    """Wait until that attempt, the newest, has committed so many more checkpoints."""
    before = commits(home, run_id, attempt_id)

    def has_committed() -> bool:
        found = reasons(home, run_id)
        assert len(found) <= attempt_id, found
        assert len(found) < attempt_id or found[-1] is None, found
        return commits(home, run_id, attempt_id) >= before + more

    wait_for(has_committed)


def nodes(home: Home, run_id: str, attempt_id: int) -> list[str]:
    placed = attempts(home, run_id)[attempt_id - 1].placed
    assert placed is not None
    return [each.node for each in placed.ranks]


def jobs_of(slurm: Rig, home: Home, run_id: str, attempt_id: int) -> list[str]:
    """Return the ids of an attempt's jobs by accounting, once for each time that Slurm ran them."""
    name = job_name(AttemptRef(run_id, attempt_id), home.app.store.url)
    asked = ("-X", "-n", "-P", "-D", f"--name={name}", "-S", "now-1days", "-o", "JobID")
    return slurm.call("sacct", *asked).split()


def assert_nothing_is_doubled(slurm: Rig, home: Home, run_id: str) -> None:
    """By accounting one job ran once for each attempt; by the stored bytes no rule is broken."""
    count = len(attempts(home, run_id))
    ran = [jobs_of(slurm, home, run_id, number) for number in range(1, count + 1)]
    assert [len(each) for each in ran] == [1] * count, ran
    assert violations(RawFolder(home.settings.home / "store")) == []


def test_a_run_survives_what_a_cluster_does_to_it_and_to_those_who_watch(
    slurm: Rig, home: Home, tmp_path: Path
) -> None:
    user = getpass.getuser()
    with served(home) as up:
        submit(home, "story")

        trains(home, "story", 1)
        up.kill()
        urgent = slurm.call(
            *("sbatch", "--parsable", "--partition=high", f"--nodes={len(NODES)}", "--exclusive"),
            *("--chdir=/", "--output=/dev/null", "--wrap=sleep 3"),
        ).strip()
        up.kill()

        trains(home, "story", 2)
        placed = attempts(home, "story")[1].placed
        assert placed is not None
        assert placed.granted == {"switches": "spine.leaf1"}
        assert slurm.state(urgent) == "COMPLETED"
        up.kill()
        lost = nodes(home, "story", 2)[1]
        slurm.call("scontrol", "update", f"nodename={lost}", "state=down", "reason=fan failed")
        up.kill()

        trains(home, "story", 3)
        # By ReturnToService it may be back by itself, which Slurm calls an error.
        slurm.is_up("scontrol", "update", f"nodename={lost}", "state=resume")
        up.kill()
        (tmp_path / "swell").touch()
        wait_for(lambda: reasons(home, "story")[2] is not None)
        (tmp_path / "swell").unlink()

        trains(home, "story", 4)
        up.kill()
        slurm.call("scancel", *jobs_of(slurm, home, "story", 4))
        wait_for(lambda: reasons(home, "story")[-1] is not None)
        up.kill()
        done = home.call("retry", "story", "--why", "it was cancelled by mistake")
        assert done.returncode == 0, done.stderr

        trains(home, "story", 5)
        up.kill()
        slurm.stop("slurmctld")
        trains(home, "story", 5, more=3)
        up.kill()
        trains(home, "story", 5, more=3)
        slurm.start_controller()
        wait_for(lambda: slurm.is_up("sinfo"))
        emptied = nodes(home, "story", 5)[0]
        done = home.call("drain", emptied, "--why", "a DIMM is replaced")
        assert done.returncode == 0, done.stderr
        up.kill()

        trains(home, "story", 6)
        assert emptied not in nodes(home, "story", 6)
        wait_for(lambda: reasons(home, "story")[-1] is not None)

        submit(home, "calm", pace_s=0.0)
        wait_for(lambda: reasons(home, "calm")[-1:] not in ([], [None]))

    assert up.kills == KILLS
    named = ["preempted", "node_failure", "host_oom", "user_cancelled", "node_drained", "completed"]
    assert reasons(home, "story") == named
    ended = attempts(home, "story")[3].ended
    assert ended is not None
    assert any(f"CANCELLED by {user}" in line for line in ended.lines), ended.lines
    # What was asked to end saved first: Slurm's grace and a drained node cost no step.
    for number in (0, 4):
        ended = attempts(home, "story")[number].ended
        assert ended is not None
        assert attempts(home, "story")[number + 1].resumed_step == ended.last_step, number + 1
    for run_id in ("story", "calm"):
        assert_nothing_is_doubled(slurm, home, run_id)
    raw = RawFolder(home.settings.home / "store")
    assert weights_digest(raw, "story") == weights_digest(raw, "calm")


def test_the_page_leads_from_a_login_node_to_an_exact_resume(slurm: Rig, tmp_path: Path) -> None:
    install, *pasted = blocks(PAGE.read_text(encoding="utf-8").split(FIRST)[1].split("\n## ")[0])
    assert "pip install" in install  # the environment is this checkout's
    (tmp_path / "venv").symlink_to(sys.prefix)
    nobody = dict.fromkeys(("TRACKS_HOME", "TRACKS_STORE", "TRACKS_SLURM"), "")
    away = NODES[-1]
    slurm.call("scontrol", "update", f"nodename={away}", "state=drain", "reason=a DIMM is replaced")
    printed = terminal_of(Home({**nobody, **slurm.environment}), tmp_path).paste("\n".join(pasted))
    slurm.call("scontrol", "update", f"nodename={away}", "state=resume")
    assert f"{away} (root): a DIMM is replaced" in printed, printed

    found = embedded(tmp_path).variables
    places = {"TRACKS_HOME": str(tmp_path / ".tracks"), "TRACKS_STORE": str(tmp_path / "store")}
    home = Home({**found, **places})
    assert reasons(home, "first") == ["preempted", "completed"]
    assert [each.opened.compute.launcher for each in attempts(home, "first")] == ["slurm", "slurm"]
    assert "same losses over" in printed, printed
    assert "tracks-first-a02" in printed


def test_a_time_limit_costs_no_step_and_no_debit(slurm: Rig, home: Home) -> None:
    file = Path(home.variables["TRACKS_SLURM"])
    file.write_text(f"{file.read_text()}time_limit: 2min\n")
    with served(home):
        submit(home, "long", steps=100_000)
        wait_for(lambda: len(attempts(home, "long")) >= 2)
        trains(home, "long", 2)
        state = home.app.tracks.run("long")
        first = state.attempts[0]
        assert first.reason == "walltime_timeout"
        newest = max(each.ref.step for each in state.checkpoints if each.ref.attempt_id == 1)
        assert state.attempts[1].resumed_step == newest
        assert first.ended is not None
        assert first.ended.last_step == newest
        rule = DEFAULT_POLICY.rule_for(first)
        by_number = limits(state, first, rule, DEFAULT_POLICY, utc_now(), trust=lambda _: True)[0]
        assert by_number.seqs == (), by_number.words
        done = home.call("stop", "long", "--why", "seen enough")
        assert done.returncode == 0, done.stderr
        wait_for(lambda: reasons(home, "long")[-1] is not None)
    assert_nothing_is_doubled(slurm, home, "long")


def test_a_gang_that_cannot_save_before_its_limit_is_ended_by_slurm_and_its_devices_are_counted(
    slurm: Rig, home: Home, tmp_path: Path
) -> None:
    file = Path(home.variables["TRACKS_SLURM"])
    classes = "device_classes: {pretended: {gres: gpu}}\n"
    file.write_text(f"{file.read_text()}time_limit: 2min\n{classes}")
    with served(home):
        options = ("--device-class", "pretended", "--set", "hang_s=900")
        submit(home, "long", *options, steps=100_000)
        trains(home, "long", 1)
        (tmp_path / "swell-frozen").touch()
        wait_for(lambda: reasons(home, "long")[0] is not None)
        (tmp_path / "swell-frozen").unlink()
        trains(home, "long", 2)
        done = home.call("stop", "long", "--why", "seen enough")
        assert done.returncode == 0, done.stderr
        wait_for(lambda: reasons(home, "long")[-1] is not None)
    state = home.app.tracks.run("long")
    first, second = state.attempts
    assert first.reason == "walltime_timeout"
    assert first.ended is not None
    assert "Slurm state: TIMEOUT" in first.ended.lines
    assert first.ended.blamed_node is None
    newest = max(each.ref.step for each in state.checkpoints if each.ref.attempt_id == 1)
    assert second.resumed_step == newest
    for attempt in (first, second):
        assert attempt.ended is not None
        assert attempt.ended.devices == 2, attempt.ended  # AllocTRES: one of each node
        assert attempt.ended.device_seconds > 0.0
    assert_nothing_is_doubled(slurm, home, "long")


def test_a_gang_trains_on_for_the_two_minutes_that_the_controller_is_away(
    slurm: Rig, home: Home
) -> None:
    with served(home) as up:
        submit(home, "calm", steps=100_000)
        trains(home, "calm", 1)
        slurm.stop("slurmctld")
        away_until = time.monotonic() + AWAY_S
        shown = home.call("pool")
        assert shown.returncode == 1
        assert "slurm: Cannot run sinfo now: " in shown.stderr
        while time.monotonic() < away_until:
            trains(home, "calm", 1)
        assert home.call("status", "calm").returncode == 0
        up.kill()
        trains(home, "calm", 1)
        slurm.start_controller()
        wait_for(lambda: slurm.is_up("sinfo"))
        trains(home, "calm", 1)
        away = NODES[-1]
        words = ("state=drain", "reason=a DIMM | is replaced")
        slurm.call("scontrol", "update", f"nodename={away}", *words)
        shown = home.call("pool", "--json")
        slurm.call("scontrol", "update", f"nodename={away}", "state=resume")
        assert shown.returncode == 0, shown.stderr
        [pool] = [each for each in json.loads(shown.stdout) if each["pool"] == "slurm"]
        note = f"slurm drained it, by {getpass.getuser()}: a DIMM | is replaced"
        assert [(each["node"], each["note"]) for each in pool["nodes"]] == [(away, note)]
        done = home.call("stop", "calm", "--why", "seen enough")
        assert done.returncode == 0, done.stderr
        wait_for(lambda: reasons(home, "calm")[-1] is not None)
    assert len(attempts(home, "calm")) == 1
    assert_nothing_is_doubled(slurm, home, "calm")
