"""Ends of real processes, as the supervisor sees them: how soon, of which rank, with what evidence.

Small scripts play the trainer: they beat and dump their stacks as `join` lets a trainer do.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from tests.fakes import FakeOrchestrator
from tests.histories import History
from tracks_dagster.attempts.effects.local.launcher import LocalLauncher
from tracks_dagster.attempts.effects.supervise import Supervisor
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.reasons.evidence import Evidence
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.stores import open_store
from tracks_dagster.track.bodies import AttemptEnded
from tracks_dagster.track.body_json import from_json
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.records import parse_time, sha256_hex
from tracks_dagster.track.states.run_state import AttemptState
from tracks_dagster.training.drills import why_no_memory_cgroup
from tracks_dagster.wiring import new_uid, utc_now

CRASH_S_MAX = 10.0  # slept from a process's end to the end of its attempt
HANG_S = 3.0

HEAD = """
import os, pathlib, signal, time
from tracks_dagster.reasons.hangs import Phase
from tracks_dagster.training.pulse import Pulse
from tracks_dagster.processes.stack_dumps import enable_dumps
work, rank = pathlib.Path(os.environ["TRACKS_WORK"]), int(os.environ.get("RANK", "0"))
enable_dumps(work, rank)
pulse = Pulse(work, rank)
pulse.finished(0.01)

def all_reduce():
    time.sleep(600)

(work / f"here-{rank}").touch()  # a busy machine starts one of them seconds before the other
while len(list(work.glob("here-*"))) < int(os.environ.get("WORLD_SIZE", "1")):
    time.sleep(0.01)
pulse.beat(Phase.WAITING_FOR_DATA, 12)
"""
WAITS_FOR_DATA = """
def next_batch():
    time.sleep(600)
if rank == 1:
    next_batch()
pulse.beat(Phase.COMPUTING, 12)
all_reduce()
"""
STOPPED = """
pulse.beat(Phase.COMPUTING, 12)
if rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
all_reduce()
"""
IN_NATIVE_CODE = """
import ctypes
pulse.beat(Phase.COMPUTING, 12)
if rank == 1:
    ctypes.PyDLL(None).sleep(600)  # holds the interpreter's lock
all_reduce()
"""
NEVER_BEATS = "import time\ntime.sleep(600)\n"
ONE_CRASHES = """
import resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
if rank == 1:
    os.kill(os.getpid(), signal.SIGSEGV)
all_reduce()
"""
OUTGROWS = """
from tracks_dagster.training.drills import outgrow_memory
outgrow_memory(work, "r-1")
"""


@pytest.fixture
def slept() -> list[tuple[datetime, float]]:
    """When the supervisor began to sleep, and for how many seconds."""
    return []


@pytest.fixture
def supervise(
    tmp_path: Path, slept: list[tuple[datetime, float]]
) -> Iterator[Callable[..., AttemptState]]:
    """Run a script as the trainer of an attempt, supervised to its end."""
    gangs = LocalLauncher(tmp_path / "work")
    store = open_store(str(tmp_path / "store"))

    def sleep(seconds: float) -> None:
        slept.append((utc_now(), seconds))
        time.sleep(seconds)

    def run(script: str, *, ranks: int = 2, **config: float) -> AttemptState:
        trainer = f"runs/r-1/trainer/{sha256_hex(script.encode())}.py"
        store.put(trainer, script.encode())
        history = History("r-1").declare(trainer=trainer)
        declared = history.state.declared
        result = {**declared.config, "hang_s": HANG_S, "hang_factor": 1.0, **config}
        compute = replace(declared.compute, ranks=ranks)
        history.open(config=result, compute=compute).write_to(store)
        attempt = Supervisor(
            tracks=Tracks(store, now=utc_now, new_uid=new_uid, project=lambda track: None),
            gangs=gangs,
            orchestrator=FakeOrchestrator(),
            foresee=lambda *_: {},
            policy=DEFAULT_POLICY,
            dagster_run_id="mine",
            host="node-1",
            sleep=sleep,
            on_growth=lambda state: None,
        ).supervise("r-1", 1)
        assert attempt is not None
        return attempt

    yield run
    gangs.kill(AttemptRef("r-1", 1))


def ended(attempt: AttemptState) -> AttemptEnded:
    assert attempt.ended is not None
    return attempt.ended


def evidence(folder: Path, attempt: AttemptState) -> Evidence:
    data = open_store(str(folder / "store")).get(ended(attempt).evidence_key)
    return from_json(Evidence, json.loads(data or b""))


def stacks(folder: Path, attempt: AttemptState) -> dict[int, str]:
    """Return the stored stack dumps that the condition names, by rank."""
    (condition,) = evidence(folder, attempt).conditions
    lines = [line for line in condition.message.splitlines() if line.startswith("stacks of rank")]
    keys = {int(line.split()[3].rstrip(":")): line.split()[-1] for line in lines}
    store = open_store(str(folder / "store"))
    return {rank: (store.get(key) or b"").decode() for rank, key in keys.items()}


def test_a_loader_that_stalls_is_found_by_rank_with_the_stacks_of_all(
    supervise: Callable[..., AttemptState], tmp_path: Path
) -> None:
    attempt = supervise(HEAD + WAITS_FOR_DATA)
    end = ended(attempt)
    assert (end.reason, end.rule) == ("data_loader_stall", "hung")
    assert end.lines[0].startswith("rank 1 of 2 has not moved for ")
    assert "waits for data in step 12" in end.lines[0]
    dumps = stacks(tmp_path, attempt)
    assert "in next_batch" in dumps[1]
    assert "in all_reduce" in dumps[0]
    assert evidence(tmp_path, attempt).beats == {
        "0": "computes in step 12",
        "1": "waits for data in step 12",
    }
    assert {rank.signal for rank in evidence(tmp_path, attempt).ranks} == {signal.SIGTERM}


def test_a_stopped_rank_hangs_and_says_why_it_has_no_stack(
    supervise: Callable[..., AttemptState], tmp_path: Path
) -> None:
    attempt = supervise(HEAD + STOPPED)
    end = ended(attempt)
    assert (end.reason, end.rule) == ("hang", "hung")
    assert end.lines[0].startswith("rank 1 of 2 ")
    assert any("stopped by a signal" in line for line in end.lines)
    assert set(stacks(tmp_path, attempt)) == {0}
    ends = {rank.rank: rank.signal for rank in evidence(tmp_path, attempt).ranks}
    assert ends == {0: signal.SIGTERM, 1: signal.SIGKILL}  # a stopped process takes no SIGTERM


def test_a_rank_that_is_stuck_in_native_code_dumps_its_stack(
    supervise: Callable[..., AttemptState], tmp_path: Path
) -> None:
    attempt = supervise(HEAD + IN_NATIVE_CODE)
    assert ended(attempt).reason == "hang"
    assert ended(attempt).lines[0].startswith("rank 1 of 2 ")
    assert "in <module>" in stacks(tmp_path, attempt)[1]


def test_a_gang_that_never_comes_to_its_first_line_hangs_by_a_limit_of_its_own(
    supervise: Callable[..., AttemptState],
) -> None:
    attempt = supervise(NEVER_BEATS, ranks=1, start_s=2.0)
    assert ended(attempt).reason == "hang"
    assert "starts and meets the other ranks" in ended(attempt).lines[0]
    assert "had not come to its first line" in ended(attempt).lines[1]


def test_the_crash_of_one_rank_closes_the_attempt_within_ten_seconds(
    supervise: Callable[..., AttemptState], slept: list[tuple[datetime, float]], tmp_path: Path
) -> None:
    """By what is slept meanwhile: the rest is the machine's, and a busy one was twenty times slower."""
    attempt = supervise(HEAD + ONE_CRASHES)
    assert ended(attempt).reason == "native_crash"
    found = evidence(tmp_path, attempt)
    first, second = sorted(found.ranks, key=lambda rank: rank.ended_at or "")
    assert (first.rank, first.signal, second.signal) == (1, signal.SIGSEGV, signal.SIGKILL)
    assert "Segmentation fault" in first.log_tail  # faulthandler's word, with the stack
    assert attempt.ended_at is not None
    crashed_at = parse_time(first.ended_at or "")
    took_s = (attempt.ended_at - crashed_at).total_seconds()
    print(f"from the crash to attempt_ended: {took_s:.1f} s")
    assert sum(seconds for at, seconds in slept if at > crashed_at) < CRASH_S_MAX


def test_a_rank_that_outgrows_a_real_memory_cgroup_is_a_host_oom_by_the_kernels_count(
    supervise: Callable[..., AttemptState], tmp_path: Path
) -> None:
    if problem := why_no_memory_cgroup():
        pytest.skip(f"no real OOM here: {problem}")
    attempt = supervise(HEAD + OUTGROWS, ranks=1, hang_s=600.0)  # an import may take a while
    found = evidence(tmp_path, attempt)
    assert found.cgroup["drill.oom_kill"] == 1
    assert ended(attempt).reason == "host_oom"
    (rank,) = found.ranks
    assert rank.signal == signal.SIGKILL
    readable = not any("not readable" in line for line in found.kernel_lines)
    assert not readable or any("out of memory: Killed" in line for line in found.kernel_lines)
    result = json.loads((tmp_path / "work" / "r-1" / "a01" / "drill" / "cgroup.json").read_text())
    assert not Path(result["path"]).exists()
