"""Many gangs on the double of an API server: what watching them asks of it, and what that costs.

All pods of all gangs are in the double, without processes. A sample of the gangs is supervised, by
the supervisor that run workers have, in processes of 4, 12 and 24 gangs: where the figures of one gang
are the same in each of them, they hold for any number. Two more processes supervise one gang each, as a
run worker does, and report how much memory that takes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.kubernetes_meter import Door, Passed
from tests.histories import History
from tests.wings.kubernetes.double.furniture import NAMESPACE
from tests.wings.kubernetes.double.kube_double import KubeDouble
from tracks_dagster.attempts.pod_files import PodBeat, beat_key, encode_beat
from tracks_dagster.attempts.ports import GangSpec, RankCommand
from tracks_dagster.reasons.hangs import Beat, Phase
from tracks_dagster.stores import open_store
from tracks_dagster.track.bodies import ComputeRequest
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.text.redact import redact
from tracks_dagster.wings.kubernetes.effects.client import connect
from tracks_dagster.wings.kubernetes.effects.launcher import KubernetesLauncher
from tracks_dagster.wings.kubernetes.job_names import job_name
from tracks_dagster.wings.kubernetes.settings import KUBERNETES, ClusterSettings
from tracks_dagster.wiring import utc_now

ROOT = Path(__file__).parents[1]
WAIT_S_MAX = 300.0
POLL_S = 0.2
PODS_OF_A_NODE = 100
RANKS_OF_A_POD = 8  # of the gangs whose supervisor's memory is measured
ROOM = {"cpu": "100000", "memory": "1000Ti", "ephemeral-storage": "1000Ti", "pods": "110"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much of everything. samples: gangs of each supervising process; late: gangs that start while
    the sample is watched; ending: share of all gangs that end then; window_s: of the steady state."""

    gangs: int = 500
    pods: int = 64
    samples: tuple[int, ...] = (4, 12, 24)
    large_pods: int = 512
    late: int = 8
    ending: float = 0.05
    window_s: float = 25.0
    log_bytes: int = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """One gang, by its run."""

    run_id: str
    pods: int
    ranks_of_a_pod: int = 1


class World:
    """The double, the store, and the gangs. door: of what starts, glances and sweeps."""

    def __init__(self, kube: KubeDouble, folder: Path, scale: Scale) -> None:
        self.kube, self.folder, self.scale = kube, folder, scale
        self.store: ObjectStore = open_store(str(folder / "store"))
        self.door = Door(kube, folder, "sensors", log_bytes=scale.log_bytes)
        self.kube.api.bookmark_every_s = 60.0  # as a real API server
        self.cluster = ClusterSettings(
            image="train:1", namespace=NAMESPACE, kubeconfig=str(self.door.kubeconfig)
        )

    @contextmanager
    def launcher(self) -> Iterator[KubernetesLauncher]:
        """Return a launcher as the process of the sensors has it."""
        with connect(self.cluster) as client:
            made = KubernetesLauncher(client, self.cluster, self.store, now=utc_now, clean=redact)
            try:
                yield made
            finally:
                made.close()

    def add_nodes(self, pods: int) -> None:
        """Make room for so many pods."""
        for number in range(pods // PODS_OF_A_NODE + 1):
            self.kube.add_node(f"n{number:05d}", allocatable=ROOM)

    def start(self, launcher: KubernetesLauncher, gangs: Sequence[Gang]) -> None:
        """Declare the runs, start their gangs, wait until every pod runs, and let each leave a beat."""
        for gang in gangs:
            compute = ComputeRequest(
                launcher=KUBERNETES,
                ranks=gang.pods * gang.ranks_of_a_pod,
                ranks_per_node=gang.ranks_of_a_pod,
            )
            history = History(gang.run_id, begin=utc_now()).declare(compute=compute).open()
            history.write_to(self.store)
            launcher.start(
                GangSpec(
                    run_id=gang.run_id,
                    attempt_id=1,
                    opened_seq=1,
                    compute=compute,
                    store_url=self.store.url,
                    command=RankCommand(words=("train.py",)),
                )
            )
        for gang in gangs:
            wait(lambda gang=gang: len(self.running(gang)) == gang.pods, f"{gang.run_id} runs")  # type: ignore[misc]

    def beat(self, gang: Gang) -> None:
        """Leave a beat of every pod."""
        for index, pod in enumerate(self.running(gang)):
            first = index * gang.ranks_of_a_pod
            ranks = range(first, first + gang.ranks_of_a_pod)
            beat = PodBeat(
                pod=pod["metadata"]["name"],
                node=pod["spec"]["nodeName"],
                boot_id="boot",
                index=index,
                ranks=tuple(Beat(rank=r, phase=Phase.EVALUATING, step=1, count=1) for r in ranks),
            )
            self.store.put(
                beat_key(AttemptRef(gang.run_id, 1), pod["metadata"]["uid"]), encode_beat(beat)
            )

    def running(self, gang: Gang) -> list[Any]:
        """Return the pods of a gang that run."""
        pods, _ = self.kube.objects.all("pods", ("job-name", job_name(AttemptRef(gang.run_id, 1))))
        return [pod for pod in pods if pod["status"].get("phase") == "Running"]

    def left(self, gangs: Sequence[Gang]) -> int:
        """Return how many objects of these gangs the API server still has."""
        names = [job_name(AttemptRef(gang.run_id, 1)) for gang in gangs]
        objects = self.kube.objects
        count = sum(len(objects.all("pods", ("job-name", name))[0]) for name in names)
        for resource in ("jobs.batch", "services"):
            count += sum(objects.find(resource, NAMESPACE, name) is not None for name in names)
        return count


class Watchers:
    """A process that supervises some gangs, and the door that it asks at."""

    def __init__(self, world: World, name: str, gangs: Sequence[Gang]) -> None:
        self.gangs = list(gangs)
        self.door = Door(world.kube, world.folder, name, log_bytes=world.scale.log_bytes)
        given = {
            "kubeconfig": str(self.door.kubeconfig),
            "namespace": NAMESPACE,
            "store": world.store.url,
            "runs": [gang.run_id for gang in gangs],
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.kubernetes_supervisor", json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.idle = self._read_answer()

    def ask(self) -> dict[str, Any]:
        """Let it tell what it has used so far."""
        assert self._process.stdin is not None
        self._process.stdin.write("now\n")
        self._process.stdin.flush()
        return self._read_answer()

    def is_watching(self) -> bool:
        """Whether every gang has its three watches, and every log was read once."""
        logs = sum(gang.pods for gang in self.gangs if gang.pods <= 64)
        read = self.door.passed().requests.get(("get", "pods/log"), 0)
        return self.door.open_watches == 3 * len(self.gangs) and read >= logs

    def has_seen_ends(self, count: int) -> bool:
        """Whether it has closed so many attempts."""
        return len(self.ask()["ended"]) >= count

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self.door.close()

    def _read_answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("A supervising process ended; its output is above.")
        answer: dict[str, Any] = json.loads(line)
        return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What one process of watchers asked and used in a time."""

    seconds: float
    passed: Passed
    cpu_s: float
    store_calls: int


def spans(watchers: Sequence[Watchers], deed: Callable[[], None]) -> list[Span]:
    """Return what each process asked while `deed` was done."""
    began_s = time.monotonic()
    before = [(each.door.passed(), each.ask()) for each in watchers]
    deed()
    seconds = time.monotonic() - began_s
    found = []
    for each, (passed, then) in zip(watchers, before, strict=True):
        now = each.ask()
        found.append(
            Span(
                seconds=seconds,
                passed=each.door.passed().since(passed),
                cpu_s=now["cpu_s"] - then["cpu_s"],
                store_calls=sum(now["store_calls"].values()) - sum(then["store_calls"].values()),
            )
        )
    return found


def wait(is_so: Callable[[], bool], what: str) -> None:
    """Wait until it is so; raises TimeoutError."""
    give_up_at = time.monotonic() + WAIT_S_MAX
    while not is_so():
        if time.monotonic() >= give_up_at:
            raise TimeoutError(f"Waited {WAIT_S_MAX:g} s in vain: {what}.")
        time.sleep(POLL_S)


@contextmanager
def supervised(world: World, groups: dict[str, list[Gang]]) -> Iterator[dict[str, Watchers]]:
    """Run a process of watchers for each group, until the block ends."""
    with ExitStack() as stack:
        made: dict[str, Watchers] = {}
        for name, gangs in groups.items():
            made[name] = Watchers(world, name, gangs)
            stack.callback(made[name].close)
        yield made
