"""The incident that triage is made for: nine variants of a model, a reboot, and nobody who remembers.

1.1 to 1.3, 2.1 and 2.4 are done. 2.2 was in epoch 83 of 150 with an accuracy of 64.84, 2.3 in epoch 42
with 56.99, when the machine was rebooted. 2.5 and 2.6 were declared and never started. An epoch has
10 steps and ends with a commit; one of 2.2 takes 0.60 minutes, one of 2.3 takes 1.39.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from random import Random

from tests.bodies import BEGIN, placed
from tests.fakes import FakeClock, FakeGangs
from tests.histories import History
from tracks_dagster.attempts.machine import Devices, MachineNow
from tracks_dagster.attempts.ports import GangLauncher, GangPhase, GangReport
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.reasons.evidence import RankEnd
from tracks_dagster.scheduling.policy import SchedulingPolicy
from tracks_dagster.stores.journals import journal_prefix
from tracks_dagster.track.bodies import CodeVersion, ComputeRequest
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json, format_time
from tracks_dagster.wings.triage.effects.triage import Sources

FAMILY = "variants"
NODE = "node-1"
EPOCHS, STEPS_OF_EPOCH = 150, 10
STEPS = EPOCHS * STEPS_OF_EPOCH
MEMORY_BYTES = 10_500_000_000  # what each of them takes of the device
DONE = ("v1-1", "v1-2", "v1-3", "v2-1", "v2-4")
INTERRUPTED = {"v2-2": (83, 0.60, 64.84), "v2-3": (42, 1.39, 56.99)}  # epoch, min/epoch, accuracy
QUEUED = ("v2-5", "v2-6")
DECLARED_S = 5400.0  # what the variants were declared to take, on one device
EVENING = BEGIN.replace(hour=1)
MORNING = BEGIN + timedelta(hours=6)  # somebody looks
JOURNAL_STEPS = 61  # of the newest steps, in the journal's last segment


@dataclass
class FakeMachine:
    """A machine that says what the test wants. asked: the pids that it was asked for."""

    now: MachineNow = field(default_factory=lambda: MachineNow(node=NODE, boot_id="boot-2"))
    found: Devices = field(default_factory=Devices)
    asked: list[int] = field(default_factory=list)

    def look(self, pids: Iterable[int]) -> MachineNow:
        self.asked += list(pids)
        return self.now

    def devices(self) -> Devices:
        return self.found


def sources_of(
    store: ObjectStore,
    ledger: Ledger,
    launcher: GangLauncher,
    *,
    machine: FakeMachine | None = None,
    now: FakeClock | None = None,
) -> Sources:
    """Return what triage looks at on NODE in the morning, rebooted since anything was placed."""
    return Sources(
        store=store,
        ledger=ledger,
        launcher_of=lambda name: launcher,
        machine=machine or FakeMachine(),
        now=now or FakeClock(MORNING),
        clean=lambda text: text,
        scheduling=SchedulingPolicy(),
    )


def write_variants(
    store: ObjectStore, gangs: FakeGangs | None = None, *, node: str = NODE
) -> list[History]:
    """Store all tracks and journals; the gangs of the interrupted ones, on `node`, are gone."""
    histories = [
        *(_done(run_id) for run_id in DONE),
        *(_interrupted(store, run_id, node) for run_id in INTERRUPTED),
        *(_declared(run_id) for run_id in QUEUED),
    ]
    for history in histories:
        history.write_to(store)
    for run_id in INTERRUPTED if gangs is not None else ():
        gangs.reports[run_id, 1] = GangReport(
            phase=GangPhase.GONE, ranks=(RankEnd(rank=0),), where=node, boot_ids={node: "boot-2"}
        )
    return histories


def _declared(run_id: str) -> History:
    minutes = 10 * int(run_id[1]) + int(run_id[3])  # in the order of their names
    code = CodeVersion(git_commit="c0ffee" * 6, branch=None, dirty=True, package_version="0")
    return History(run_id, begin=EVENING + timedelta(minutes=minutes)).declare(
        model_family=FAMILY,
        config={"steps": STEPS, "epochs": EPOCHS, "seed": 7, "micro_batch": 4, "accumulation": 6},
        code=code,
        compute=ComputeRequest(ranks=1, device_class="gpu", memory_bytes=MEMORY_BYTES),
        estimated_device_s=DECLARED_S,
        evals=(),
        promotion=None,
    )


def _done(run_id: str) -> History:
    history = _declared(run_id).open().supervise().place(world_size=1).restore()
    history.commit(STEPS, epoch=EPOCHS, trigger="final").end("completed", last_step=STEPS)
    return history.finish()


def _interrupted(store: ObjectStore, run_id: str, node: str) -> History:
    epoch, minutes, accuracy = INTERRUPTED[run_id]
    [rank] = placed("", world_size=1).ranks
    history = _declared(run_id).open().supervise()
    history.place(world_size=1, ranks=(replace(rank, node=node, accelerator="a GPU"),)).restore()
    step_s = minutes * 60 / STEPS_OF_EPOCH
    last = epoch * STEPS_OF_EPOCH
    at = history.at + timedelta(seconds=(last - JOURNAL_STEPS) * step_s)
    random, lines = Random(last), []
    for step in range(last - JOURNAL_STEPS + 1, last + 1):
        at += timedelta(seconds=random.gauss(step_s, 0.05 * step_s))  # steps are not all alike
        lines.append(_line(step, at, accuracy))
    prefix = journal_prefix(AttemptRef(run_id, 1), history.launch_id, 0)
    store.put(f"{prefix}{0:012d}.jsonl", b"".join(json.dumps(x).encode() + b"\n" for x in lines))
    history.at = at
    history.commit(last, epoch=epoch, metrics={"accuracy": accuracy})
    return history


def _line(step: int, at: datetime, accuracy: float) -> dict[str, Json]:
    return {
        "kind": "step",
        "t": format_time(at),
        "step": step,
        "loss": 5.0 / step,
        "metrics": {"accuracy": accuracy, "device_memory_bytes": float(MEMORY_BYTES)},
        "step_s": 0.1,
        "data_s": 0.0,
        "cursor_to": step * 24,
        "indices_sha256": f"{step:064x}",
    }
