"""Gangs of real processes, killed as a reboot kills them: `tracks triage` tells what became of each."""

from __future__ import annotations

import json
import os
import platform
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.histories import History
from tracks_dagster.attempts.effects.local import launcher, this_machine
from tracks_dagster.attempts.effects.local.launcher import LocalLauncher
from tracks_dagster.attempts.ports import SCRIPT, GangPhase, GangSpec, RankCommand
from tracks_dagster.cli import main
from tracks_dagster.processes import process
from tracks_dagster.processes.process import boot_id, find_process, this_process
from tracks_dagster.settings import Settings
from tracks_dagster.track.bodies import AttemptSupervised, ComputeRequest, RankPlace
from tracks_dagster.track.names import AttemptRef, attempt_key
from tracks_dagster.track.records import Json, Kind
from tracks_dagster.wiring import App, build

WAIT_S_MAX = 120.0  # for what takes a second on an idle machine
RANKS = 2
SLEEPS = "import time\ntime.sleep(3600)\n"
ENDS = """
import os, pathlib, time
while not (pathlib.Path(os.environ["TRACKS_WORK"]) / "go").exists():
    time.sleep(0.02)
"""
RAISES = f"{ENDS}raise SystemExit(7)\n"
NEW_BOOT = "00000000-0000-0000-0000-000000000000"


class Gangs:
    """Starts gangs for runs of one home, and kills them the hard way."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.launcher = LocalLauncher(app.settings.work)
        self.started: list[str] = []

    def run(self, run_id: str, script: str, *, supervised: bool = False) -> None:
        """Declare a run and start its gang; write down what its supervisor and its rank 0 would."""
        history = History(run_id).declare(compute=ComputeRequest(ranks=RANKS)).open()
        claim = AttemptSupervised(dagster_run_id="dagster-1", host=platform.node())
        if supervised:  # by the process of this test
            own = this_process()
            claim = AttemptSupervised(
                dagster_run_id="dagster-1",
                host=platform.node(),
                pid=own.pid,
                pid_started=own.started,
                boot_id=own.boot_id,
            )
        history.add(Kind.ATTEMPT_SUPERVISED, claim, attempt_id=1)
        spec = GangSpec(
            run_id=run_id,
            attempt_id=1,
            opened_seq=1,
            compute=ComputeRequest(ranks=RANKS),
            store_url=self.app.store.url,
            command=RankCommand(words=(SCRIPT,)),
            code_key=f"runs/{run_id}/trainer/0a.py",
            code=script.encode(),
        )
        self.started.append(run_id)
        assert self.launcher.start(spec)
        wait_for(lambda: len(self.pids(run_id)) == 1 + RANKS)
        ranks = json.loads((self._folder(run_id) / "gang.pid").read_text())["ranks"]
        places = tuple(
            RankPlace(
                rank=rank["rank"],
                node=platform.node(),
                pid=rank["pid"],
                pid_started=rank["started"],
                boot_id=rank["boot_id"],
                device="cpu",
                accelerator="cpu",
            )
            for rank in ranks
        )
        history.place(ranks=places, world_size=RANKS).restore().commit(10)
        history.write_to(self.app.store)
        self.app.projector.project(history.name)

    def pids(self, run_id: str) -> list[int]:
        """Return the pids of the gang's parent and of its ranks."""
        written = json.loads((self._folder(run_id) / "gang.pid").read_text())
        return [written["pid"], *(rank["pid"] for rank in written["ranks"])]

    def kill(self, run_id: str) -> None:
        """Send SIGKILL to everything at once, the parent first: nobody writes anything down."""
        for pid in self.pids(run_id):
            if find_process(pid) is not None:
                os.kill(pid, signal.SIGKILL)
        wait_for(lambda: self.launcher.glance(AttemptRef(run_id, 1)).phase is GangPhase.GONE)

    def let_end(self, run_id: str) -> None:
        """Let the gang end by itself, and wait until it has."""
        (self._folder(run_id) / "go").touch()
        wait_for(lambda: self.launcher.glance(AttemptRef(run_id, 1)).phase is GangPhase.GONE)

    def _folder(self, run_id: str) -> Path:
        return self.app.settings.work / attempt_key(run_id, 1)


@pytest.fixture
def gangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gangs]:
    """A home of its own; whatever still lives at the end is killed."""
    for name in ("TRACKS_STORE", "TRACKS_POSTGRES_URL", "TRACKS_KUBERNETES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TRACKS_HOME", str(tmp_path / "home"))
    found = Gangs(build(Settings.from_environment()))
    yield found
    monkeypatch.undo()  # or a boot that is pretended hides what lives
    for run_id in found.started:
        found.launcher.kill(AttemptRef(run_id, 1))


def triaged() -> dict[str, Json]:
    """Call `tracks triage`; return its lines by run."""
    began = time.perf_counter()
    result = CliRunner().invoke(main, ["triage", "--json"])
    print(f"tracks triage answered in {time.perf_counter() - began:.2f} s")
    assert result.exit_code in (0, 1), result.output
    return {line["run_id"]: line for line in json.loads(result.stdout)["lines"]}


def verdicts(lines: dict[str, Json]) -> dict[str, str]:
    return {run_id: line["verdict"] for run_id, line in lines.items()}


def text_of(line: Json) -> str:
    return "; ".join(sign["words"] for sign in line["signs"])


def test_after_a_reboot_the_truth_about_every_gang_is_reported(
    gangs: Gangs, monkeypatch: pytest.MonkeyPatch
) -> None:
    gangs.run("watched", SLEEPS, supervised=True)
    gangs.run("orphan", SLEEPS)
    gangs.run("killed", SLEEPS)
    gangs.kill("killed")
    gangs.run("ended", ENDS)
    gangs.run("raised", RAISES)
    for run_id in ("ended", "raised"):
        gangs.let_end(run_id)
    waiting = History("waiting").declare().open()
    waiting.write_to(gangs.app.store)
    gangs.app.projector.project(waiting.name)

    before = triaged()
    assert verdicts(before) == {
        "watched": "alive",
        "orphan": "orphaned",
        "killed": "dead",
        "ended": "finished_unrecorded",
        "raised": "dead",
        "waiting": "queued",
    }
    pid = gangs.pids("orphan")[1]
    assert f"rank 0: pid {pid} lives" in text_of(before["orphan"])
    assert "exit code 7" in before["raised"]["why"]
    assert "the boot is the one it was placed on" in text_of(before["killed"])

    for run_id in ("watched", "orphan"):
        gangs.kill(run_id)
    for module in (process, launcher, this_machine):
        monkeypatch.setattr(module, "boot_id", lambda: NEW_BOOT)
    after = triaged()
    assert verdicts(after) == {
        **verdicts(before),
        "watched": "dead",
        "orphan": "dead",
    }
    assert "rebooted since it was placed" in text_of(after["watched"])
    assert f"pid {os.getpid()} ended with its boot" in text_of(after["watched"])  # its supervisor
    assert {line["committed_step"] for line in after.values() if line["run_id"] != "waiting"} == {
        10
    }


def test_a_pid_that_another_process_has_now_is_not_taken_for_the_rank(gangs: Gangs) -> None:
    own = this_process()
    place = RankPlace(
        rank=0,
        node=platform.node(),
        pid=own.pid,
        pid_started=own.started - 5.0,
        boot_id=boot_id(),
        device="cpu",
        accelerator="cpu",
    )
    history = History("reused").declare(compute=ComputeRequest(ranks=1)).open().supervise()
    history.place(ranks=(place,), world_size=1)
    history.write_to(gangs.app.store)
    gangs.app.projector.project(history.name)
    line = triaged()["reused"]
    assert line["verdict"] == "dead"
    assert f"pid {own.pid} is another process" in text_of(line)


def wait_for(holds: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + WAIT_S_MAX
    while not holds():
        assert time.monotonic() < give_up_at, "waited in vain"
        time.sleep(0.05)
