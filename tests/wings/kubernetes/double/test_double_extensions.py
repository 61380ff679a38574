"""The double's Kueue and JobSet, its nodes, patches and pages: what gangs meet beside plain Jobs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from tests.wings.kubernetes.double.answers import Json
from tests.wings.kubernetes.double.furniture import NAMESPACE
from tests.wings.kubernetes.double.gangs import SLEEPS, job, running, until
from tests.wings.kubernetes.double.kinds import JOBSETS
from tests.wings.kubernetes.double.kube_double import KubeDouble
from tests.wings.kubernetes.double.objects import conditions

QUICK = "print('done')"


def queued(name: str) -> Json:
    made = job(name)
    made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "team"
    return made


def jobset(name: str, code: str, pods: int) -> Json:
    inner = job("inner", code, pods=pods)
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {"replicatedJobs": [{"name": "w", "template": {"spec": inner["spec"]}}]},
    }


def events_of(kube: KubeDouble, name: str) -> list[str]:
    found, _ = kube.objects.all("events")
    return [e["reason"] for e in found if e["involvedObject"]["name"] == name]


def test_a_queued_job_waits_until_it_is_admitted_and_is_suspended_when_evicted(
    kube: KubeDouble, batch: client.BatchV1Api
) -> None:
    kueue = kube.install_kueue()
    kueue.add_queue("team")
    assert batch.create_namespaced_job(NAMESPACE, queued("gang")).spec.suspend
    until(lambda: "CreatedWorkload" in events_of(kube, "gang") or None, "its Workload is made")
    kueue.admit("gang", {"zone": "a"})
    pod = until(lambda: next(iter(kube.objects.all("pods")[0]), None), "it has a pod")
    assert pod["spec"]["nodeSelector"] == {"zone": "a"}
    kueue.evict("gang")
    until(lambda: not kube.objects.all("pods")[0] or None, "its pods are gone")
    found = kube.objects.get("jobs.batch", NAMESPACE, "gang")
    assert conditions(found)["Suspended"]["status"] == "True"
    assert {"Stopped", "Suspended"} <= set(events_of(kube, "gang"))


def ended(kube: KubeDouble, name: str) -> str | None:
    status = kube.objects.get(JOBSETS, NAMESPACE, name)["status"]
    return status.get("terminalState")


@pytest.mark.parametrize(("code", "end"), [(QUICK, "Completed"), ("exit(3)", "Failed")])
def test_a_jobset_makes_its_jobs_and_ends_as_they_do(kube: KubeDouble, code: str, end: str) -> None:
    kube.install_jobset()
    with kube.client() as connection:
        custom = client.CustomObjectsApi(connection)
        place = ("jobset.x-k8s.io", "v1alpha2", NAMESPACE, "jobsets")
        custom.create_namespaced_custom_object(*place, jobset("set", code, 2))
        assert until(lambda: ended(kube, "set"), "the JobSet has ended") == end
        custom.delete_namespaced_custom_object(*place, "set")
    gone = ("jobs.batch", "pods", "services")
    until(lambda: not any(kube.objects.all(kind)[0] for kind in gone) or None, "all is collected")


def test_a_taint_that_is_not_tolerated_evicts_a_pod_whose_process_is_ended(
    kube: KubeDouble, batch: client.BatchV1Api
) -> None:
    batch.create_namespaced_job(NAMESPACE, job("tainted", podReplacementPolicy="Failed"))
    (pod,) = running(kube, "tainted")
    kube.taint_node(kube.pod(pod)["spec"]["nodeName"], "bad", "NoExecute")
    until(lambda: pod not in kube.pids() or None, "its process is ended")
    assert "TaintManagerEviction" in events_of(kube, pod)


def test_a_machine_that_is_taken_away_takes_its_pods(
    kube: KubeDouble, batch: client.BatchV1Api
) -> None:
    seen: list[Json] = []
    kube.objects.listeners.append(lambda c: c.resource == "pods" and seen.append(c.new))  # type: ignore[func-returns-value]
    batch.create_namespaced_job(NAMESPACE, job("spot"))
    (pod,) = running(kube, "spot")
    kube.remove_node(kube.pod(pod)["spec"]["nodeName"])
    until(lambda: not kube.objects.all("pods")[0] or None, "its pod is collected")
    assert conditions(seen[-1])["DisruptionTarget"]["reason"] == "DeletionByPodGC"


def test_a_shutdown_in_order_is_reported_as_terminated(
    kube: KubeDouble, batch: client.BatchV1Api
) -> None:
    batch.create_namespaced_job(NAMESPACE, job("shut"))
    (pod,) = running(kube, "shut")
    kube.shut_down_node(kube.pod(pod)["spec"]["nodeName"])
    status = until(lambda: _failed(kube, pod), "it has failed")
    assert status["reason"] == "Terminated"
    assert status["conditions"][0]["reason"] == "TerminationByKubelet"


def _failed(kube: KubeDouble, pod: str) -> Json | None:
    status: Json = kube.pod(pod)["status"]
    return status if status["phase"] == "Failed" else None


PATCHES: list[tuple[str, object, Callable[[Json], object], object]] = [
    (
        "application/merge-patch+json",
        {"metadata": {"labels": {"new": "1", "app": None}}},
        lambda j: j["metadata"]["labels"].get("new"),
        "1",
    ),
    (
        "application/strategic-merge-patch+json",
        {"spec": {"suspend": True}},
        lambda j: j["spec"]["suspend"],
        True,
    ),
    (
        "application/json-patch+json",
        [{"op": "replace", "path": "/spec/backoffLimit", "value": 3}],
        lambda j: j["spec"]["backoffLimit"],
        3,
    ),
]


@pytest.mark.parametrize(("kind", "body", "read", "wanted"), PATCHES)
def test_a_job_is_patched_in_three_ways(
    kube: KubeDouble,
    batch: client.BatchV1Api,
    kind: str,
    body: object,
    read: Callable[[Json], object],
    wanted: object,
) -> None:
    batch.create_namespaced_job(NAMESPACE, job("patched", SLEEPS))
    batch.patch_namespaced_job("patched", NAMESPACE, body, _content_type=kind)
    assert read(kube.objects.get("jobs.batch", NAMESPACE, "patched")) == wanted


def test_a_template_that_runs_is_immutable_and_a_status_is_changed_at_its_own_path(
    kube: KubeDouble, batch: client.BatchV1Api, core: client.CoreV1Api
) -> None:
    batch.create_namespaced_job(NAMESPACE, job("fixed"))
    (pod,) = running(kube, "fixed")
    template = {"spec": {"template": {"spec": {"nodeSelector": {"a": "b"}}}}}
    with pytest.raises(ApiException, match="field is immutable"):
        batch.patch_namespaced_job("fixed", NAMESPACE, template)
    note = {"status": {"conditions": [{"type": "Mine", "status": "True"}]}}
    core.patch_namespaced_pod(pod, NAMESPACE, note)
    assert "Mine" not in conditions(kube.pod(pod))
    core.patch_namespaced_pod_status(pod, NAMESPACE, note)
    assert {"Mine", "Ready"} <= conditions(kube.pod(pod)).keys()


def test_pages_show_one_state_and_a_forgotten_list_is_410(
    kube: KubeDouble, core: client.CoreV1Api
) -> None:
    for index in range(5):
        body = {"metadata": {"name": f"c{index}"}, "data": {}}
        core.create_namespaced_config_map(NAMESPACE, body)
    first = core.list_namespaced_config_map(NAMESPACE, limit=2)
    core.delete_namespaced_config_map("c3", NAMESPACE)
    token = first.metadata._continue
    second = core.list_namespaced_config_map(NAMESPACE, limit=2, _continue=token)
    assert [c.metadata.name for c in second.items] == ["c2", "c3"]
    assert second.metadata.resource_version == first.metadata.resource_version
    kube.expire_resource_versions()
    with pytest.raises(ApiException) as refused:
        core.list_namespaced_config_map(NAMESPACE, limit=2, _continue=token)
    assert refused.value.status == 410


def test_a_field_that_nobody_may_select_by_is_400(core: client.CoreV1Api) -> None:
    with pytest.raises(ApiException, match="field label not supported") as refused:
        core.list_namespaced_pod(NAMESPACE, field_selector="spec.hostname=a")
    assert refused.value.status == 400


def test_a_priority_class_that_is_not_there_and_a_quota_are_read_from_events(
    kube: KubeDouble, batch: client.BatchV1Api
) -> None:
    batch.create_namespaced_job(NAMESPACE, job("urgent", pod={"priorityClassName": "none"}))
    until(lambda: "FailedCreate" in events_of(kube, "urgent") or None, "no such priority")
    kube.set_quota("small", {"pods": "0"})
    batch.create_namespaced_job(NAMESPACE, job("refused"))
    until(lambda: "FailedCreate" in events_of(kube, "refused") or None, "the quota refuses")
