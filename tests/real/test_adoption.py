"""A gang outlives its supervisor, is adopted by the next one, and is never started twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.fakes import FakeOrchestrator
from tests.histories import History
from tracks_dagster.attempts.effects.local.launcher import LocalLauncher
from tracks_dagster.attempts.effects.supervise import Supervisor
from tracks_dagster.attempts.ports import GangPhase
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.stores import open_store
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.records import Kind, sha256_hex
from tracks_dagster.wiring import new_uid, utc_now

ROOT = Path(__file__).resolve().parents[2]
WAIT_S_MAX = 120.0  # for what takes a second on an idle machine
SCRIPT = """
import os, pathlib, time
work = pathlib.Path(os.environ["TRACKS_WORK"])
with (work / "starts").open("a") as starts:
    starts.write("started\\n")
while not (work / "go").exists():
    time.sleep(0.02)
"""
TRAINER = f"runs/r-1/trainer/{sha256_hex(SCRIPT.encode())}.py"


def make_supervisor(home: Path, dagster_run_id: str) -> Supervisor:
    store = open_store(str(home / "store"))
    return Supervisor(
        tracks=Tracks(store, now=utc_now, new_uid=new_uid, project=lambda track: None),
        gangs=LocalLauncher(home / "work"),
        orchestrator=FakeOrchestrator(),
        foresee=lambda *_: {},
        policy=DEFAULT_POLICY,
        dagster_run_id=dagster_run_id,
        host="node-1",
        sleep=lambda seconds: time.sleep(0.05),
        on_growth=lambda state: None,
    )


def test_a_gang_outlives_a_killed_supervisor_and_is_adopted_with_its_exit_code(
    tmp_path: Path,
) -> None:
    store = open_store(str(tmp_path / "store"))
    store.put(TRAINER, SCRIPT.encode())
    History("r-1").declare(trainer=TRAINER).open().write_to(store)
    folder = tmp_path / "work" / "r-1" / "a01"
    first = subprocess.Popen([sys.executable, "-m", __name__, str(tmp_path)], cwd=ROOT)
    with first:
        wait_for(lambda: started_count(folder) == 2)
        os.kill(first.pid, signal.SIGKILL)

    second = make_supervisor(tmp_path, "second")
    assert second.gangs.observe(AttemptRef("r-1", 1)).phase is GangPhase.ALIVE
    (folder / "go").touch()
    attempt = second.supervise("r-1", 1)

    assert attempt is not None
    assert [claim.body.dagster_run_id for claim in attempt.claims] == ["first", "second"]
    assert started_count(folder) == 2  # two ranks, once each
    assert [rank.exit_code for rank in second.gangs.observe(AttemptRef("r-1", 1)).ranks] == [0, 0]
    kinds = [record.kind for record in second.tracks.records("runs/r-1")]
    assert kinds.count(Kind.ATTEMPT_ENDED) == 1


def started_count(folder: Path) -> int:
    starts = folder / "starts"
    return len(starts.read_text().splitlines()) if starts.exists() else 0


def wait_for(holds: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + WAIT_S_MAX
    while not holds():
        assert time.monotonic() < give_up_at, "waited in vain"
        time.sleep(0.02)


if __name__ == "__main__":  # the supervisor that is killed
    make_supervisor(Path(sys.argv[1]), "first").supervise("r-1", 1)
