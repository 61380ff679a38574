"""The watch of the run workers' pods: it misses nothing while it runs, and its memory has bounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from kubernetes import client

from tests.wings.kubernetes.double.furniture import NAMESPACE
from tests.wings.kubernetes.double.gangs import job, running, until
from tests.wings.kubernetes.double.kube_double import KubeDouble, kube_double
from tracks_dagster.track.errors import GangError
from tracks_dagster.track.records import Json
from tracks_dagster.wings.kubernetes.effects import run_worker_watch as run_worker_api
from tracks_dagster.wings.kubernetes.effects.client import connect
from tracks_dagster.wings.kubernetes.effects.run_worker_watch import (
    LABEL_DAGSTER_RUN,
    RunWorkerApi,
    RunWorkerWatch,
)
from tracks_dagster.wings.kubernetes.run_workers import has_disruption
from tracks_dagster.wings.kubernetes.settings import ClusterSettings


@pytest.fixture
def kube(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubeDouble]:
    monkeypatch.setattr(run_worker_api, "WINDOW_S", 1)
    monkeypatch.setattr(run_worker_api, "BACKOFF_S", (0.05,))
    with kube_double(tmp_path / "kube", pretend=True) as double:
        yield double


@pytest.fixture
def changed() -> list[str]:
    return []


@pytest.fixture
def watch(kube: KubeDouble, changed: list[str]) -> Iterator[RunWorkerWatch]:
    """A watch that tells which runs changed, and whose every word is answered with an error."""

    def seen(run_id: str, _history: Sequence[Json]) -> None:
        changed.append(run_id)
        raise RuntimeError("Dagster's storage does not answer.")

    cluster = ClusterSettings(image="x", namespace=NAMESPACE, kubeconfig=str(kube.kubeconfig))
    with connect(cluster) as connection:
        api = RunWorkerApi(connection, cluster)
        made = RunWorkerWatch(api, seen=seen, between=lambda: changed.append("-"))
        made.start()
        made.start()
        yield made
        made.stop()
        thread = made._thread
        assert thread is not None
        thread.join(30)


def worker(kube: KubeDouble, run_id: str, component: str = "run_worker") -> str:
    """Start what dagster-k8s would; return the pod's name once it runs."""
    labels = {"app.kubernetes.io/component": component, LABEL_DAGSTER_RUN: run_id}
    made = job(f"w-{run_id}")
    made["spec"]["template"]["metadata"] = {"labels": labels}
    with kube.client() as connection:
        client.BatchV1Api(connection).create_namespaced_job(NAMESPACE, made)
    (name,) = running(kube, f"w-{run_id}")
    return name


def disrupted(watch: RunWorkerWatch, run_id: str) -> bool:
    return has_disruption(watch.history(run_id))


def test_a_pod_that_vanishes_at_once_is_remembered_and_an_error_ends_no_watch(
    kube: KubeDouble, watch: RunWorkerWatch, changed: list[str]
) -> None:
    worker(kube, "first")
    until(lambda: watch.history("first"), "the watch has begun")
    for run_id in ("one", "two"):
        kube.preempt(worker(kube, run_id))
        until(lambda run_id=run_id: disrupted(watch, run_id), "the preemption was seen")
    until(lambda: {"one", "two", "-"} <= set(changed), "all was reported, and a window has ended")


def test_others_pods_are_not_watched(kube: KubeDouble, watch: RunWorkerWatch) -> None:
    worker(kube, "step", component="step_worker")
    worker(kube, "run")
    until(lambda: watch.history("run"), "the run worker was seen")
    assert not watch.history("step")


@pytest.mark.parametrize("broken", ["cut", "expired", "restarted"])
def test_a_watch_that_breaks_goes_on(kube: KubeDouble, watch: RunWorkerWatch, broken: str) -> None:
    pod = worker(kube, "run")
    until(lambda: watch.history("run"), "the pod was seen")
    if broken == "expired":
        kube.expire_resource_versions()
    if broken == "restarted":
        kube.restart(down_s=0.2)
    kube.break_watches()
    worker(kube, "another")
    until(lambda: watch.history("another"), "a pod that began meanwhile is seen")
    kube.preempt(pod)
    until(lambda: disrupted(watch, "run"), "the preemption was seen")


def test_what_is_remembered_has_bounds(
    kube: KubeDouble, watch: RunWorkerWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_worker_api, "CHANGES_MAX", 3)
    monkeypatch.setattr(run_worker_api, "RUNS_MAX", 2)

    def change(run_id: str, number: int) -> Any:
        labels = {LABEL_DAGSTER_RUN: run_id}
        meta = {"name": run_id, "uid": run_id, "labels": labels, "managedFields": ["long"]}
        return {"metadata": meta, "spec": {"containers": ["long"]}, "status": {"n": number}}

    for number in range(10):
        watch._take(change("a", number))
        watch._take(change("a", number))
    assert [pod["status"]["n"] for pod in watch.history("a")] == [7, 8, 9]
    assert "long" not in str(watch.history("a"))
    for run_id in ("b", "c"):
        watch._take(change(run_id, 0))
    assert not watch.history("a")
    assert len(watch._histories) == 2


class Ending:
    """Ends each watch with the same ERROR event, as a server does after it has answered 200."""

    def __init__(self, code: int) -> None:
        self._code = code

    def changes(self, version: str, *, seconds: int) -> Iterator[dict[str, Json]]:
        yield {"type": "ERROR", "object": {"code": self._code, "message": "no more"}}


def test_a_watch_that_the_server_ends_for_an_old_version_is_begun_again_and_else_waited_with() -> (
    None
):
    def watch_on(code: int) -> RunWorkerWatch:
        api = cast(RunWorkerApi, Ending(code))
        return RunWorkerWatch(api, seen=lambda *_: None, between=lambda: None)

    assert watch_on(410)._window("7") == ""
    with pytest.raises(GangError, match="no more"):
        watch_on(500)._window("7")
