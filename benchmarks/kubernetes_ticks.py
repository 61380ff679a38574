"""What a tick of every sensor asks for, per open attempt, beside more and more closed attempts.

Two worlds: the closed attempts are those of other runs, which are over; and they are those of the one
run that is open. Counted are requests to the store and the API server, queries of the ledger and the
steps that SQLite makes for them, and lookups of Dagster runs. Real services and adapters; the store is
in memory, Dagster is a fake.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import event

from benchmarks.kubernetes_meter import Counted, Door
from tests.deciders import ticked, world_of
from tests.fakes import FakeClock, FakeObjectStore, FakeOrchestrator
from tests.histories import History
from tests.wings.kubernetes.double.furniture import NAMESPACE
from tests.wings.kubernetes.double.kube_double import kube_double
from tracks_dagster.attempts.effects.heartbeat import write_heartbeat
from tracks_dagster.attempts.effects.sweeping import sweep
from tracks_dagster.attempts.effects.watch import close_lost, survey
from tracks_dagster.attempts.launch import plan_launches
from tracks_dagster.attempts.ports import GangSpec, RankCommand
from tracks_dagster.ledger.effects.database.engine import make_engine
from tracks_dagster.ledger.effects.database.schema import make_schema
from tracks_dagster.ledger.effects.database.sql_ledger import SqlLedger
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.track import names
from tracks_dagster.track.bodies import ComputeRequest
from tracks_dagster.track.names import attempt_key, run_track
from tracks_dagster.track.text.redact import redact
from tracks_dagster.wings.kubernetes.effects.client import connect
from tracks_dagster.wings.kubernetes.effects.launcher import KubernetesLauncher
from tracks_dagster.wings.kubernetes.settings import ClusterSettings
from tracks_dagster.wiring import new_uid, utc_now

CLOSED = (0, 100, 1000, 5000)  # attempts, of runs that are over
OWN = (0, 100, 1000)  # attempts of the open run itself
OPEN_RUNS = 16
ATTEMPTS_OF_A_RUN = 5
TICK_S = 10.0  # of the launcher's clock; longer than its list of Jobs is good for
BEFORE = timedelta(days=6)  # inside every window of days, outside of the storms'
COMPUTE = ComputeRequest(launcher="kubernetes", ranks=2, ranks_per_node=1)
DUE = {  # one run that each sensor has to decide on
    names.RETRY_PREEMPTED: "preempted",
    names.RETRY_INFRASTRUCTURE: "node_failure",
    names.RETRY_NUMERICS: "loss_divergence",
    names.RETRY_OOM: "gpu_oom",
    names.WATCH_ATTEMPTS: "code_error",
}
WHATS = ("store_requests", "queries", "sql_steps", "dagster_lookups", "api_requests", "api_kb")

# What grows from the fewest to the most closed attempts, by whose they are.
OTHERS, ITSELF = "closed attempts of others", "closed attempts of the run"
AT_MOST = {
    f"{work}_growth by {whose}, {what}": 1.0
    for work in ("tick", "decision")
    for whose in (OTHERS, ITSELF)
    for what in WHATS
    if what not in ("sql_steps", "api_kb")
} | {f"tick_growth by {whose}, sql_steps": 1.5 for whose in (OTHERS, ITSELF)}
WHY = dict.fromkeys(AT_MOST, "something looks at what is closed; the lines above say at what cost")

Work = Counter[str]
Figures = dict[str, float]


def figures(closed: tuple[int, ...] = CLOSED, own: tuple[int, ...] = OWN) -> Figures:
    """Return the work of ticks and decisions at the fewest and the most closed attempts, and growth."""
    others = {count: _measured(count, OPEN_RUNS, 0) for count in closed}
    owns = {count: _measured(0, 1, count) for count in own}
    for whose, measured in ((OTHERS, others), (ITSELF, owns)):
        for count, parts in measured.items():
            for part, work in parts.items():
                counts = "  ".join(f"{what} {work[what]:g}" for what in WHATS)
                print(f"  {count:>5} {whose}, {part}: {counts}", file=sys.stderr)
    return {**_growth(others, OTHERS, OPEN_RUNS), **_growth(owns, ITSELF, 1)}


def _growth(measured: Mapping[int, Mapping[str, Work]], whose: str, open_runs: int) -> Figures:
    """Return what one tick of all sensors takes per open attempt, and how it and decisions grow."""
    fewest, most = measured[min(measured)], measured[max(measured)]
    found: Figures = {}
    for what in WHATS:
        found[f"tick_per_open_attempt @{max(measured)} {whose}, {what}"] = (
            most["tick"][what] / open_runs
        )
    for part in ("tick", "decision"):
        for what in WHATS:
            before, after = fewest[part][what], most[part][what]
            found[f"{part}_growth by {whose}, {what}"] = after / before if before else 1.0
    return found


class Plane:
    """A control plane: tracks, ledger, launcher, and Dagster; with what it has asked for so far."""

    def __init__(self, folder: Path, door: Door, client: Any) -> None:
        self.store = FakeObjectStore()
        self.clock = FakeClock(utc_now())
        self.orchestrator = Counted(FakeOrchestrator())
        self._door, self._seconds, self._steps = door, 0.0, 0
        engine = make_engine(f"sqlite:///{folder / 'ledger.db'}")
        make_schema(engine)
        event.listen(engine, "connect", self._count_steps)
        self.ledger = Counted(SqlLedger(engine))
        cluster = ClusterSettings(
            image="train:1", namespace=NAMESPACE, kubeconfig=str(door.kubeconfig)
        )
        self.launcher = KubernetesLauncher(
            client,
            cluster,
            self.store,
            now=self.clock,
            clean=redact,
            seconds=lambda: self._seconds,
        )
        self.fresh()

    def fresh(self) -> None:
        """Begin again as a process does that has read nothing yet."""
        self.projector = Projector(self.store, self.ledger)
        self.tracks = Tracks(
            self.store, now=self.clock, new_uid=new_uid, project=self.projector.project
        )

    def asked(self) -> Work:
        """Return what was asked for so far."""
        passed = self._door.passed()
        return Counter(
            store_requests=len(self.store.calls),
            queries=sum(self.ledger.calls.values()),
            sql_steps=self._steps,
            dagster_lookups=sum(self.orchestrator.calls.values()),
            api_requests=sum(passed.requests.values()),
            api_kb=round(sum(passed.sent_bytes.values()) / 1e3),
        )

    def measured(self, deed: Callable[[], object]) -> Work:
        """Return what `deed` asked for."""
        before = self.asked()
        deed()
        return Counter({what: n - before[what] for what, n in self.asked().items()})

    def tick(self) -> None:
        """Let every sensor tick, and the sweeper."""
        self._seconds += TICK_S
        world = world_of(
            self.tracks,
            self.ledger,
            launcher_of=self._launcher_of,
            orchestrator=self.orchestrator,
        )
        found = survey(world)
        planned = plan_launches(found.done, self.clock())
        write_heartbeat(self.store, self.clock(), {})
        lost = close_lost(world)
        for unexpected in (found.problems, planned.requests, lost.problems, lost.done):
            assert unexpected == (), unexpected
        for sensor in DUE:
            assert self.settle(sensor) == ()
        swept = sweep(self.tracks, self.ledger, self.launcher)
        assert swept.problems == (), swept

    def settle(self, sensor: str) -> tuple[str, ...]:
        """Let one sensor decide; return what it decided."""
        tick = ticked(self.tracks, self.ledger, sensor=sensor)
        assert tick.problems == (), tick
        return tick.decided

    def decide(self) -> None:
        """Let every sensor decide on the run that is due for it."""
        for sensor in DUE:
            decided = self.settle(sensor)
            assert len(decided) == 1, (sensor, decided)

    def _launcher_of(self, _name: str) -> KubernetesLauncher:
        return self.launcher

    def _count_steps(self, connection: sqlite3.Connection, _: object) -> None:
        def step() -> int:
            self._steps += 1
            return 0

        connection.set_progress_handler(step, 1)


@contextmanager
def _plane() -> Iterator[Plane]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tracks-bench-")))
        kube = stack.enter_context(kube_double(folder / "kube", pretend=True))
        door = Door(kube, folder, "plane", log_bytes=0)
        stack.callback(door.close)
        settings = ClusterSettings(
            image="train:1", namespace=NAMESPACE, kubeconfig=str(door.kubeconfig)
        )
        plane = Plane(folder, door, stack.enter_context(connect(settings)))
        stack.callback(plane.launcher.close)
        yield plane


def _measured(closed: int, open_runs: int, own: int) -> dict[str, Work]:
    """Return the work of a first tick, of a later one, and of one decision of each sensor."""
    with _plane() as plane:
        for number in range(0, closed, ATTEMPTS_OF_A_RUN):
            _over(plane, f"over-{number}", min(ATTEMPTS_OF_A_RUN, closed - number))
        for number in range(open_runs):
            _open(plane, f"open-{number}", own)
        plane.projector.scan()
        plane.fresh()
        first = plane.measured(plane.tick)
        later = plane.measured(plane.tick)
        assert plane.measured(plane.tick)["store_requests"] == later["store_requests"]
        for sensor, reason in DUE.items():
            _due(plane, f"due-{sensor}", reason, own)
        plane.projector.scan()
        for sensor in DUE:  # as when it had read the run while that trained
            plane.projector.project(run_track(f"due-{sensor}"))
            plane.tracks.run(f"due-{sensor}")
        decision = plane.measured(plane.decide)
    return {"first tick": first, "tick": later, "decision": decision}


def _over(plane: Plane, run_id: str, attempts: int) -> None:
    """Let there be a run that is over, with so many closed attempts."""
    history = History(run_id, begin=plane.clock() - BEFORE).declare(compute=COMPUTE)
    _close(history, attempts)
    history.stop().finish("user").write_to(plane.store)


def _close(history: History, attempts: int) -> None:
    reasons = ("preempted", "node_failure", "node_drained", "host_oom")
    for number in range(attempts):
        history.open().supervise(f"dead-{number}").place().end(reasons[number % len(reasons)])


def _open(plane: Plane, run_id: str, own: int) -> None:
    """Let there be a run whose newest attempt is open and supervised, and its gang."""
    history = History(run_id, begin=plane.clock() - BEFORE).declare(compute=COMPUTE)
    _close(history, own)
    history.open().supervise(f"alive-{run_id}").place().write_to(plane.store)
    plane.orchestrator.put(attempt_key(run_id, own + 1), f"alive-{run_id}")
    plane.launcher.start(
        GangSpec(
            run_id=run_id,
            attempt_id=own + 1,
            opened_seq=1,
            compute=COMPUTE,
            store_url=plane.store.url,
            command=RankCommand(words=("train.py",)),
        )
    )


def _due(plane: Plane, run_id: str, reason: str, own: int) -> None:
    """Let there be a run on whose newest attempt a decision is due."""
    history = History(run_id, begin=plane.clock() - BEFORE).declare(compute=COMPUTE)
    _close(history, own)
    history.open().supervise("dead").place().restore().commit(10)
    history.end(reason, last_step=12).write_to(plane.store)
