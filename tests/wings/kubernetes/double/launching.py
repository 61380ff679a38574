"""Launchers against the double, and what their tests ask again and again."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from tests.fakes import FakeObjectStore
from tests.wings.kubernetes.double.furniture import NAMESPACE
from tests.wings.kubernetes.double.gangs import until
from tests.wings.kubernetes.double.kube_double import KubeDouble
from tracks_dagster.attempts.ports import GangPhase, GangReport, GangSpec, RankCommand
from tracks_dagster.track.bodies import ComputeRequest
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.text.redact import redact
from tracks_dagster.wings.kubernetes.effects.client import connect
from tracks_dagster.wings.kubernetes.effects.launcher import KubernetesLauncher
from tracks_dagster.wings.kubernetes.job_names import job_name
from tracks_dagster.wings.kubernetes.settings import ClusterSettings

NODES, RANKS_PER_NODE = 2, 2


class Clock:
    """The time, and what a test adds to it; `freeze` stops the steady clock but for that."""

    def __init__(self) -> None:
        self._ahead_s = 0.0
        self._frozen_s: float | None = None

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self._ahead_s)

    def seconds(self) -> float:
        real_s = time.monotonic() if self._frozen_s is None else self._frozen_s
        return real_s + self._ahead_s

    def freeze(self) -> None:
        self._frozen_s = time.monotonic()

    def advance(self, seconds: float) -> None:
        self._ahead_s += seconds


def settings(kube: KubeDouble, **given: object) -> ClusterSettings:
    """Return settings that lead to the double."""
    base = ClusterSettings(image="train:1", namespace=NAMESPACE, kubeconfig=str(kube.kubeconfig))
    return replace(base, **given)  # type: ignore[arg-type]


def spec(run_id: str = "r-1", attempt_id: int = 1, **compute: object) -> GangSpec:
    """Return a gang of 2 pods with 2 ranks each."""
    wanted = {"ranks": NODES * RANKS_PER_NODE, "ranks_per_node": RANKS_PER_NODE, **compute}
    return GangSpec(
        run_id=run_id,
        attempt_id=attempt_id,
        opened_seq=1,
        compute=ComputeRequest(launcher="kubernetes", **wanted),  # type: ignore[arg-type]
        store_url="memory://fake",
        command=RankCommand(words=("train.py",)),
    )


@contextmanager
def launcher_on(
    kube: KubeDouble, store: FakeObjectStore, clock: Clock | None = None, **given: object
) -> Iterator[KubernetesLauncher]:
    """Run a launcher as a process of its own would; nothing of it lives after the block."""
    clock = clock or Clock()
    cluster = settings(kube, **given)
    with connect(cluster) as client:
        launcher = KubernetesLauncher(
            client, cluster, store, now=clock.now, clean=redact, seconds=clock.seconds
        )
        try:
            yield launcher
        finally:
            launcher.close()


def pods_of(kube: KubeDouble, run_id: str = "r-1", attempt_id: int = 1) -> list[str]:
    """Return the names of a gang's pods that are there, by index."""
    found, _ = kube.objects.all("pods")
    name = job_name(AttemptRef(run_id, attempt_id))
    return [n for pod in found if (n := pod["metadata"]["name"]).startswith(f"{name}-")]


def running(kube: KubeDouble, run_id: str = "r-1", count: int = NODES) -> list[str]:
    """Wait until the gang's pods run; return their names by index."""

    def up() -> list[str] | None:
        names = pods_of(kube, run_id)
        phases = [kube.pod(name)["status"]["phase"] for name in names]
        return names if phases == ["Running"] * count else None

    return until(up, f"{count} pods of {run_id} run")


def uid_of(kube: KubeDouble, pod: str) -> str:
    return str(kube.pod(pod)["metadata"]["uid"])


def seen(
    launcher: KubernetesLauncher,
    wanted: Callable[[GangReport], bool],
    what: str,
    run_id: str = "r-1",
) -> GangReport:
    """Observe until a report is as wanted; return it."""

    def look() -> GangReport | None:
        report = launcher.observe(AttemptRef(run_id, 1))
        return report if wanted(report) else None

    return until(look, what)


def is_gone(report: GangReport) -> bool:
    return report.phase is GangPhase.GONE


def asked(kube: KubeDouble) -> Counter[tuple[str, str]]:
    """Return how often each (verb, resource) was asked so far."""
    return Counter(kube.requests)
