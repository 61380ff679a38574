"""Two homes share a namespace, and by chance a run's id: neither touches what is the other's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes import client as library

from tests.fakes import FakeObjectStore
from tests.wings.kubernetes.double.furniture import NAMESPACE
from tests.wings.kubernetes.double.kube_double import KubeDouble, kube_double
from tests.wings.kubernetes.double.launching import launcher_on, pods_of, running, seen, spec
from tracks_dagster.attempts.ports import GangPhase, GangSpec
from tracks_dagster.track.errors import GangError
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.records import canonical_json
from tracks_dagster.wings.kubernetes.job_names import job_name

JOB, PODS, SERVICES = "jobs.batch", "pods", "services"
NAME = job_name(AttemptRef("r-1", 1))


@pytest.fixture
def kube(tmp_path: Path) -> Iterator[KubeDouble]:
    """A double whose pods have no processes."""
    with kube_double(tmp_path / "kube", pretend=True) as double:
        yield double


def made(store_id: str, url: str = "memory://fake") -> FakeObjectStore:
    """Return a store that was made, as every real one is: it knows which one it is."""
    store = FakeObjectStore(url)
    store.put("format.json", canonical_json({"format": 1, "store_id": store_id}))
    return store


def at(url: str) -> GangSpec:
    wanted = spec()
    object.__setattr__(wanted, "store_url", url)
    return wanted


@pytest.mark.parametrize(
    "theirs",
    [made("b", "memory://other"), made("b"), FakeObjectStore("memory://other")],
    ids=["another store", "another store of that name", "a store that does not say which it is"],
)
def test_a_gang_of_another_home_is_neither_adopted_nor_ended_nor_swept(
    kube: KubeDouble, theirs: FakeObjectStore
) -> None:
    with launcher_on(kube, made("a")) as first, launcher_on(kube, theirs) as second:
        first.start(spec())
        names = running(kube)
        seen(first, lambda report: bool(report.beats), "both pods are seen running")
        assert second.glance(AttemptRef("r-1", 1)).phase is GangPhase.NEVER_STARTED
        assert second.observe(AttemptRef("r-1", 1)).phase is GangPhase.NEVER_STARTED
        with pytest.raises(GangError, match=r"another store.*Two homes share this namespace"):
            second.start(at(theirs.url))
        second.drain(AttemptRef("r-1", 1), grace_s=5.0)
        second.kill(AttemptRef("r-1", 1))
        assert second.observe(AttemptRef("r-1", 1)).phase is GangPhase.NEVER_STARTED
        assert list(second.standing()) == []
        assert first.observe(AttemptRef("r-1", 1)).phase is GangPhase.ALIVE
    assert pods_of(kube) == names
    assert [len(kube.objects.all(each)[0]) for each in (JOB, SERVICES)] == [1, 1]
    assert not any("deletionTimestamp" in pod["metadata"] for pod in kube.objects.all(PODS)[0])


def test_pods_that_outlive_a_job_of_another_home_are_left_to_it(kube: KubeDouble) -> None:
    with launcher_on(kube, made("a")) as first, launcher_on(kube, made("b")) as second:
        first.start(spec())
        running(kube)
        library.BatchV1Api(kube.client()).delete_namespaced_job(
            NAME, NAMESPACE, propagation_policy="Orphan"
        )
        assert second.observe(AttemptRef("r-1", 1)).phase is GangPhase.NEVER_STARTED
        second.kill(AttemptRef("r-1", 1))
        assert first.observe(AttemptRef("r-1", 1)).phase is GangPhase.ALIVE
    assert not any("deletionTimestamp" in pod["metadata"] for pod in kube.objects.all(PODS)[0])


def test_a_gang_is_ours_however_its_store_is_called_where_this_runs(kube: KubeDouble) -> None:
    on_pods, here = made("a", "/mnt/tracks"), made("a", "/home/me/tracks")
    with launcher_on(kube, on_pods) as first, launcher_on(kube, here) as second:
        first.start(at(on_pods.url))
        running(kube)
        assert second.glance(AttemptRef("r-1", 1)).phase is GangPhase.ALIVE
        job, service = second.standing()
        assert (job.store_url, service.kind) == (here.url, "Service")
        second.kill(AttemptRef("r-1", 1))
    assert kube.objects.all(JOB)[0] == []


def test_a_job_that_somebody_made_of_a_gangs_manifest_is_not_swept(kube: KubeDouble) -> None:
    with launcher_on(kube, made("a")) as launcher:
        launcher.start(spec())
        running(kube)
        (copy,), _ = kube.objects.all(JOB)
        meta = {key: copy["metadata"][key] for key in ("labels", "annotations")}
        spec_of = {k: v for k, v in copy["spec"].items() if k not in ("selector", "manualSelector")}
        spec_of["template"]["metadata"].pop("labels", None)
        body = {**copy, "metadata": {**meta, "name": "debug"}, "spec": spec_of, "status": {}}
        library.BatchV1Api(kube.client()).create_namespaced_job(NAMESPACE, body)
        assert [gang.name for gang in launcher.standing()] == [NAME, NAME]


def test_what_was_made_again_since_it_was_listed_is_not_swept(kube: KubeDouble) -> None:
    store = made("a")
    with launcher_on(kube, store) as launcher:
        launcher.start(spec())
        job, service = launcher.standing()
        launcher.kill(AttemptRef("r-1", 1))
        store.objects = {k: v for k, v in store.objects.items() if k == "format.json"}
    with launcher_on(kube, store) as again:
        assert again.start(spec())
        again.sweep(job)
        again.sweep(service)
    assert [len(kube.objects.all(each)[0]) for each in (JOB, SERVICES)] == [1, 1]
