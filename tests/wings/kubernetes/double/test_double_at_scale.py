"""Many gangs on the double, as pretences: its own work grows with the number of pods, not faster."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.wings.kubernetes.double.furniture import NAMESPACE
from tests.wings.kubernetes.double.gangs import job, until
from tests.wings.kubernetes.double.kube_double import KubeDouble, kube_double
from tests.wings.kubernetes.double.manifests import prepared


@pytest.mark.parametrize(
    ("gangs", "pods"),
    [(4, 16), pytest.param(500, 64, marks=pytest.mark.full)],
)
def test_gangs_of_pretences_run_and_end(tmp_path: Path, gangs: int, pods: int) -> None:
    with kube_double(tmp_path, pretend=True, history_max=50_000) as kube:
        for number in range(gangs * pods // 100 + 1):
            kube.add_node(f"n{number:05d}", allocatable={"cpu": "1000", "pods": "110"})
        for number in range(gangs):
            made = prepared("jobs.batch", job(f"g{number}", pods=pods), NAMESPACE)
            kube.objects.create("jobs.batch", made)
        until(lambda: _running(kube) == gangs * pods or None, "every pod runs")
        labelled, _ = kube.objects.all("pods", ("job-name", "g1"))
        assert len(labelled) == pods
        for pod in labelled:
            kube.finish(pod["metadata"]["name"])
        until(lambda: _complete(kube, "g1"), "one gang is complete")


def _running(kube: KubeDouble) -> int:
    return len(kube.lives())


def _complete(kube: KubeDouble, name: str) -> str | None:
    found = kube.objects.get("jobs.batch", NAMESPACE, name)
    return found["status"].get("completionTime")
