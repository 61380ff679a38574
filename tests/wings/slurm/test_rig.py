"""Whole runs on a real Slurm: trained, preempted, cancelled, at their time limit; one job an attempt.

Skipped in words where this machine has no Slurm. The rig's nodes are this machine twice.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import tracks_dagster
from tests.integration.homes import COMMAND_S_MAX, Home, embedded, outcome, wait_for
from tests.wings.slurm.rig import Rig, rig, why_none
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.states.run_state import AttemptState
from tracks_dagster.wings.slurm.submission import job_name

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(2 * COMMAND_S_MAX),
    pytest.mark.skipif(bool(why_none()), reason=why_none()),
]

ROOT = Path(tracks_dagster.__file__).parents[1]
SIZE = ("--steps", "400", "--checkpoint-every", "20", "--ranks", "2")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A cluster whose accounts are this process's too."""
    with rig(tmp_path_factory.mktemp("slurm")) as found, pytest.MonkeyPatch.context() as patch:
        for name, value in found.environment.items():
            patch.setenv(name, value)  # for the daemon, and for the launcher in this process
        yield found


@pytest.fixture
def home(slurm: Rig, tmp_path: Path) -> Iterator[Home]:
    """An embedded home whose gangs are jobs of that cluster; a daemon runs."""
    found = embedded(tmp_path)
    found.settings.home.mkdir(parents=True, exist_ok=True)
    file = found.settings.home / "slurm.yaml"
    settings = {
        "python": sys.executable,
        "partition": "low",
        "notice": "30s",
        "environment": {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        "work": str(tmp_path),
    }
    file.write_text(yaml.safe_dump(settings))
    found.variables.update({"TRACKS_SLURM": str(file), **slurm.environment})
    with found.daemon():
        yield found


def attempts(home: Home, run_id: str) -> list[AttemptState]:
    state = home.app.tracks.find_run(run_id)
    return [] if state is None else list(state.attempts)


def commits(home: Home, run_id: str, attempt_id: int) -> int:
    state = home.app.tracks.find_run(run_id)
    found = () if state is None else state.checkpoints
    return sum(each.ref.attempt_id == attempt_id for each in found)


def trains(home: Home, command: subprocess.Popen[str], run_id: str, attempt_id: int) -> None:
    """Wait until that attempt has committed a checkpoint of its own, and is open."""

    def has_committed() -> bool:
        if command.poll() is not None:
            raise AssertionError(command.communicate())
        reasons = [each.reason for each in attempts(home, run_id)]
        if len(reasons) < attempt_id:
            return False
        assert len(reasons) == attempt_id, reasons
        assert reasons[-1] is None, reasons
        return commits(home, run_id, attempt_id) > 0

    wait_for(has_committed)


def jobs_of(slurm: Rig, home: Home, run_id: str, attempt_id: int) -> list[str]:
    """Return the ids of an attempt's jobs by accounting."""
    name = job_name(AttemptRef(run_id, attempt_id), home.app.store.url)
    asked = ("-X", "-n", "-P", "-D", f"--name={name}", "-S", "now-1days", "-o", "JobID")
    return slurm.call("sacct", *asked).split()


def test_a_run_on_slurm_survives_what_a_cluster_does_to_it(slurm: Rig, home: Home) -> None:
    command = home.run("on-slurm", "--on", "slurm", *SIZE)

    trains(home, command, "on-slurm", 1)
    urgent = slurm.call(
        *("sbatch", "--parsable", "--partition=high", "--nodes=2", "--exclusive", "--chdir=/"),
        *("--output=/dev/null", "--wrap=sleep 3"),
    ).strip()

    trains(home, command, "on-slurm", 2)
    assert slurm.state(urgent) == "COMPLETED"
    slurm.stop("slurmctld")  # nobody is told anything for a while, and the gang trains on
    before = commits(home, "on-slurm", 2)
    wait_for(lambda: commits(home, "on-slurm", 2) > before)
    time.sleep(15)
    slurm.start_controller()

    found = outcome(command)
    assert found["state"] == "succeeded"
    assert [each.reason for each in attempts(home, "on-slurm")] == ["preempted", "completed"]
    counts = [len(jobs_of(slurm, home, "on-slurm", number)) for number in (1, 2)]
    assert counts == [1, 1]

    alone = outcome(home.run("alone", *SIZE))
    assert alone["state"] == "succeeded"
    for digest in ("weights_sha256", "samples_sha256"):
        assert found["final"][digest] == alone["final"][digest], digest


def test_what_a_person_cancels_says_who_it_was(slurm: Rig, home: Home) -> None:
    command = home.run("cancelled", "--on", "slurm", *SIZE)
    trains(home, command, "cancelled", 1)
    slurm.call("scancel", *jobs_of(slurm, home, "cancelled", 1))
    wait_for(lambda: attempts(home, "cancelled")[0].reason is not None)
    attempt = attempts(home, "cancelled")[0]
    assert attempt.reason == "user_cancelled"
    assert attempt.ended is not None
    assert any(
        f"CANCELLED by {os.environ.get('USER', 'root')}" in line for line in attempt.ended.lines
    )
    command.terminate()
    command.communicate(timeout=COMMAND_S_MAX)


def test_a_time_limit_costs_no_work_and_no_debit(slurm: Rig, home: Home) -> None:
    file = Path(home.variables["TRACKS_SLURM"])
    file.write_text(f"{file.read_text()}time_limit: 2min\n")
    size = ("--steps", "100000", "--checkpoint-every", "1000", "--ranks", "2")
    command = home.run("long", "--on", "slurm", *size)
    wait_for(lambda: len(attempts(home, "long")) >= 2)
    first, second = attempts(home, "long")[:2]
    assert first.reason == "walltime_timeout"
    assert commits(home, "long", 1) > 0
    assert second.opened.debit == 0
    home.call("stop", "long", "--why", "seen enough")
    command.communicate(timeout=COMMAND_S_MAX)
