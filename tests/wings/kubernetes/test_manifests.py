"""What stands in the objects of a gang, for every kind of request; all of them by the API's schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

import kubernetes_validate
import pytest

from tests.wings.kubernetes.double.manifests import prepared
from tests.wings.kubernetes_requests import (
    H200,
    cluster,
    gang,
    job_of,
    pod_of,
    service_of,
    template_of,
    trainer_of,
    variables,
)
from tracks_dagster.attempts.ports import GangSpec
from tracks_dagster.track.body_json import from_json, to_json
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json, canonical_json
from tracks_dagster.training.pods.environment import read_pod_environment
from tracks_dagster.wings.kubernetes.job_names import pod_host
from tracks_dagster.wings.kubernetes.manifests import gang_objects
from tracks_dagster.wings.kubernetes.settings import ClassSettings, DeviceClass

GIB = 1024**3
NAME = "tracks-gpt-7-a02-17e3c436cf"
LABELS = {
    "app.kubernetes.io/managed-by": "tracks-dagster",
    "tracks/training-run-id": "gpt-7",
    "tracks/attempt-id": "2",
}
QUEUE = "kueue.x-k8s.io/queue-name"
PRIORITY = "kueue.x-k8s.io/priority-class"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
VERSIONS = ("1.32", "1.34", kubernetes_validate.latest_version())
TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
RICH_TEMPLATE: Json = {
    "metadata": {"labels": {"team": "x"}, "annotations": {"example.com/note": "y"}},
    "spec": {
        "restartPolicy": "Never",
        "hostNetwork": True,
        "runtimeClassName": "nvidia",
        "imagePullSecrets": [{"name": "one"}],
        "tolerations": [TOLERATION],
        "securityContext": {"runAsUser": 7, "supplementalGroups": [44]},
        "affinity": {
            "nodeAffinity": {
                REQUIRED: {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
                        {"matchExpressions": [{"key": "zone", "operator": "Exists"}]},
                    ]
                }
            }
        },
        "initContainers": [{"name": "warm-up", "image": "busybox", "command": ["true"]}],
        "containers": [
            {"name": "exporter", "image": "exporter", "ports": [{"containerPort": 9400}]},
            {
                "name": "trainer",
                "env": [{"name": "HF_HOME", "value": "/cache"}],
                "resources": {"limits": {"rdma/hca": 1}, "requests": {"rdma/hca": 1}},
                "volumeMounts": [{"name": "cache", "mountPath": "/cache"}],
                "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
            },
        ],
        "volumes": [{"name": "cache", "hostPath": {"path": "/cache", "type": "Directory"}}],
    },
}
RICH_SETTINGS: Mapping[str, Any] = {
    "service_account": "tracks-gang",
    "image_pull_policy": "Always",
    "image_pull_secrets": ("two",),
    "environment": {"NCCL_SOCKET_IFNAME": "eth0"},
    "environment_from": ({"secretRef": {"name": "tracks-store"}},),
    "volumes": ({"name": "data", "persistentVolumeClaim": {"claimName": "data"}},),
    "volume_mounts": ({"name": "data", "mountPath": "/data", "readOnly": True},),
    "tolerations": (TOLERATION,),
    "node_selector": {"pool": "training"},
    "priority_class": "research",
    "queue": "training",
    "topology_key": "topology.kubernetes.io/zone",
}
GPU: Mapping[str, Any] = {
    "ranks": 16,
    "ranks_per_node": 8,
    "device_class": "h200",
    "cpus": 64.0,
    "memory_bytes": 64 * GIB,
}
EVERYTHING: Mapping[str, Any] = {"excluded_nodes": ("n2", "n1"), "node_selector": {"a": "b"}, **GPU}
RACK = "cloud.provider.com/topology-rack"
CLASSES: Mapping[str, ClassSettings] = {
    "urgent": ClassSettings(queue="urgent", workload_priority="high", priority_class="now"),
    "distributed": ClassSettings(topology_key=RACK, topology_rule="required"),
    "sweep": ClassSettings(topology_key=RACK, topology_rule="preferred"),
}
ON_KAI: Mapping[str, Any] = {
    "scheduler": "kai-scheduler",
    "queue": "team-a",
    "topology": "network",
    "classes": CLASSES,
}
FORMS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "a CPU": ({}, {}),
    "GPUs": (GPU, {}),
    "a queue": ({"queue": "night"}, {}),
    "excluded nodes": ({"excluded_nodes": ("n1",)}, {}),
    "a topology": ({"topology_key": "rack"}, {}),
    "a template": ({}, {"pod_template": RICH_TEMPLATE}),
    "ten thousand pods": ({"ranks": 80_000, "ranks_per_node": 8, "device_class": "h200"}, {}),
    "stored code": ({"code_key": "runs/gpt-7/trainer/ab.tar"}, {}),
    "a class": ({"workload_class": "urgent"}, {"queue": "training", "classes": CLASSES}),
    "a class in a JobSet": (
        {"workload_class": "urgent"},
        {"queue": "training", "classes": CLASSES, "job_kind": "JobSet"},
    ),
    "a topology of Kueue": ({"workload_class": "distributed"}, {"queue": "a", "classes": CLASSES}),
    "KAI": ({"workload_class": "distributed"}, ON_KAI),
    "KAI with a JobSet": ({"workload_class": "distributed"}, {**ON_KAI, "job_kind": "JobSet"}),
    "Volcano": ({}, {"scheduler": "volcano", "queue": "team-a"}),
    "everything": (EVERYTHING, {**RICH_SETTINGS, "pod_template": RICH_TEMPLATE}),
    "a JobSet": ({}, {"job_kind": "JobSet"}),
    "everything in a JobSet": (
        EVERYTHING,
        {**RICH_SETTINGS, "pod_template": RICH_TEMPLATE, "job_kind": "JobSet"},
    ),
}


def as_known(manifest: Json) -> Json:
    """Return the manifest, or for a JobSet, which has no schema here, the Job that comes of it."""
    if manifest["kind"] != "JobSet":
        return manifest
    member = manifest["spec"]["replicatedJobs"][0]
    metadata = {**member["template"]["metadata"], "name": f"{NAME}-gang-0"}
    spec = member["template"]["spec"]
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def empty(value: Json) -> None:
    """Take everything out of every map and list."""
    if isinstance(value, dict | list):
        for inner in list(value.values() if isinstance(value, dict) else value):
            empty(inner)
        value.clear()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_holds_by_the_schema_of_the_api(form: str, version: str) -> None:
    asked, settings = FORMS[form]
    for manifest in gang_objects(gang(**asked), cluster(**settings)):
        used = kubernetes_validate.validate(as_known(manifest), version, strict=True)
        assert used == version.removesuffix(".0")


def test_the_schema_would_find_a_field_that_there_is_not() -> None:
    job = job_of(gang(), cluster())
    job["spec"]["template"]["spec"]["restartpolicy"] = "Never"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, "1.34", strict=True)


@pytest.mark.parametrize("form", FORMS)
def test_the_same_attempt_makes_the_same_bytes_and_changes_nothing_it_was_given(form: str) -> None:
    asked, settings = FORMS[form]
    spec, given = gang(**asked), cluster(**deepcopy(dict(settings)))
    first = canonical_json(gang_objects(spec, given))
    empty(gang_objects(spec, given))  # anyone who edits one edits nothing else
    stored: GangSpec = from_json(GangSpec, json.loads(canonical_json(to_json(spec))))
    assert canonical_json(gang_objects(stored, given)) == first
    assert given == cluster(**settings)


def test_an_api_server_takes_the_objects_one_after_the_other() -> None:
    service, job = gang_objects(gang(), cluster())
    assert prepared("services", service, "tracks")["metadata"]["name"] == NAME
    assert prepared("jobs.batch", job, "tracks")["spec"]["completions"] == 2


def test_the_service_gives_every_pod_a_name_before_it_is_ready() -> None:
    service = service_of(gang(), cluster())
    assert service["metadata"] == {
        "name": NAME,
        "namespace": "tracks",
        "labels": LABELS,
        "annotations": {"tracks/attempt": "gpt-7/a02"},
    }
    assert service["spec"] == {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": LABELS,
        "ports": [{"name": "rendezvous", "port": 29500, "protocol": "TCP"}],
    }


def test_the_job_runs_every_index_once_and_stays_when_it_is_over() -> None:
    job = job_of(gang(ranks=6, ranks_per_node=2), cluster())
    template = job["spec"].pop("template")
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    assert job["metadata"] == service_of(gang(), cluster())["metadata"]
    assert job["spec"] == {
        "completionMode": "Indexed",
        "completions": 3,
        "parallelism": 3,
        "backoffLimit": 0,
        "podReplacementPolicy": "TerminatingOrFailed",
    }
    assert template["metadata"] == {
        "labels": LABELS,
        "annotations": {"tracks/attempt": "gpt-7/a02"},
    }
    assert template["spec"]["restartPolicy"] == "Never"
    assert template["spec"]["subdomain"] == NAME
    assert template["spec"]["terminationGracePeriodSeconds"] == 120


def test_a_job_set_has_that_job_as_its_only_member_and_no_service_of_its_own() -> None:
    settings = cluster(job_kind="JobSet", queue="night")
    job_set = job_of(gang(), settings)
    member = job_set["spec"].pop("replicatedJobs")
    assert job_set["apiVersion"] == "jobset.x-k8s.io/v1alpha2"
    assert job_set["metadata"]["name"] == NAME
    assert job_set["metadata"]["labels"] == LABELS | {QUEUE: "night"}
    assert job_set["spec"] == {
        "suspend": True,
        "failurePolicy": {"maxRestarts": 0},
        "network": {"enableDNSHostnames": False},
    }
    assert [(each["name"], each["replicas"]) for each in member] == [("gang", 1)]
    assert member[0]["template"]["metadata"]["labels"] == LABELS  # the set is queued, not its Job
    plain = job_of(gang(), cluster())["spec"]
    inside = member[0]["template"]["spec"]
    assert inside.keys() == plain.keys()
    job = variables(gang(), cluster(queue="night"))
    assert variables(gang(), settings).items() - job.items() == {
        ("TRACKS_MASTER_ADDR", f"{NAME}-gang-0-0.{NAME}")
    }


@pytest.mark.parametrize(
    ("asked", "settled", "queue"),
    [
        (None, None, None),
        (None, "training", "training"),
        ("night", None, "night"),
        ("night", "training", "night"),
        ("", "training", None),  # this request refuses what the settings say
    ],
)
def test_a_queue_holds_the_job_back_until_it_admits_it(
    asked: str | None, settled: str | None, queue: str | None
) -> None:
    job = job_of(gang(queue=asked), cluster(queue=settled))
    assert job["metadata"]["labels"].get(QUEUE) == queue
    assert job["spec"].get("suspend") == (True if queue else None)
    assert QUEUE not in job["spec"]["template"]["metadata"]["labels"]


def test_a_class_names_the_queue_and_both_priorities_and_a_request_names_another_queue() -> None:
    settings = cluster(queue="training", workload_priority="usual", classes=CLASSES)
    urgent = job_of(gang(workload_class="urgent"), settings)
    assert urgent["metadata"]["labels"] == LABELS | {QUEUE: "urgent", PRIORITY: "high"}
    assert urgent["spec"]["suspend"] is True
    assert urgent["spec"]["template"]["spec"]["priorityClassName"] == "now"
    other = job_of(gang(workload_class="single"), settings)  # the file says nothing of that class
    assert other["metadata"]["labels"] == LABELS | {QUEUE: "training", PRIORITY: "usual"}
    assert "priorityClassName" not in other["spec"]["template"]["spec"]
    own = job_of(gang(workload_class="urgent", queue="night"), settings)
    assert own["metadata"]["labels"][QUEUE] == "night"
    off = job_of(gang(workload_class="urgent", queue=""), settings)
    assert off["metadata"]["labels"] == LABELS  # no queue, so nobody reads its priority


@pytest.mark.parametrize(
    ("workload_class", "annotation"),
    [
        ("distributed", "kueue.x-k8s.io/podset-required-topology"),
        ("sweep", "kueue.x-k8s.io/podset-preferred-topology"),
    ],
)
def test_a_topology_is_asked_of_the_queue_in_place_of_an_affinity(
    workload_class: str, annotation: str
) -> None:
    spec, settings = gang(workload_class=workload_class), cluster(queue="a", classes=CLASSES)
    annotations = template_of(spec, settings)["metadata"]["annotations"]
    assert annotations == {"tracks/attempt": "gpt-7/a02", annotation: RACK}
    assert "affinity" not in pod_of(spec, settings)


@pytest.mark.parametrize("kind", ["Job", "JobSet"])
def test_kai_reads_queue_gang_and_topology_from_the_job_and_is_not_waited_for(kind: str) -> None:
    spec = gang(ranks=4, workload_class="distributed")
    job = job_of(spec, cluster(**{**ON_KAI, "job_kind": kind}))
    assert job["metadata"]["labels"] == LABELS | {"kai.scheduler/queue": "team-a"}
    assert job["metadata"]["annotations"] == {
        "tracks/attempt": "gpt-7/a02",
        "kai.scheduler/batch-min-member": "4",
        "kai.scheduler/topology": "network",
        "kai.scheduler/topology-required-placement": RACK,
    }
    template = template_of(spec, cluster(**{**ON_KAI, "job_kind": kind}))
    assert template["metadata"]["labels"] == LABELS | {"kai.scheduler/queue": "team-a"}
    assert template["spec"]["schedulerName"] == "kai-scheduler"
    assert "suspend" not in job["spec"]  # nobody would lift it


def test_volcano_reads_the_gang_from_the_job_and_the_queue_from_its_pods() -> None:
    settings = cluster(scheduler="volcano", queue="team-a")
    job = job_of(gang(ranks=6, ranks_per_node=2), settings)
    assert job["metadata"]["annotations"]["scheduling.volcano.sh/group-min-member"] == "3"
    template = job["spec"]["template"]
    assert template["metadata"]["annotations"]["scheduling.volcano.sh/queue-name"] == "team-a"
    assert template["spec"]["schedulerName"] == "volcano"
    assert QUEUE not in job["metadata"]["labels"]
    member = job_of(gang(), cluster(scheduler="volcano", job_kind="JobSet"))
    [replicated] = member["spec"]["replicatedJobs"]
    marks = replicated["template"]["metadata"]["annotations"]
    assert marks["scheduling.volcano.sh/group-min-member"] == "2"  # of the Job that owns the pods


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"topology_rule": "required"}, "name a queue"),
        ({"topology_rule": "required", "scheduler": "volcano", "queue": "a"}, "Volcano reads no"),
        ({"topology_rule": "preferred", "scheduler": "kai-scheduler"}, "set topology: NAME"),
    ],
)
def test_a_topology_that_nobody_would_read_is_refused(
    settings: Mapping[str, Any], words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        gang_objects(gang(topology_key=RACK), cluster(**settings))


def test_a_pod_knows_what_was_asked_of_the_cluster_and_reads_what_was_granted() -> None:
    spec = gang(workload_class="urgent")
    result = variables(spec, cluster(queue="training", classes=CLASSES))
    asked = {"queue": "urgent", "workload_priority": "high", "priority_class": "now"}
    assert json.loads(result["TRACKS_ASKED"]) == {"workload_class": "urgent", **asked}
    label = "metadata.labels['kueue.x-k8s.io/cluster-queue-name']"
    assert result["TRACKS_CLUSTER_QUEUE"] == label


def test_a_pod_gets_everything_about_its_attempt() -> None:
    result = variables(gang(ranks=16, ranks_per_node=8), cluster())
    assert result == {
        "JOB_COMPLETION_INDEX": (
            "metadata.annotations['batch.kubernetes.io/job-completion-index']"
        ),
        "TRACKS_NODE": "spec.nodeName",
        "TRACKS_POD": "metadata.name",
        "TRACKS_POD_UID": "metadata.uid",
        "TRACKS_STORE": "s3://bucket/tracks",
        "TRACKS_RUN_ID": "gpt-7",
        "TRACKS_ATTEMPT_ID": "2",
        "TRACKS_OPENED_SEQ": "5",
        "TRACKS_WORK": "/var/tracks",
        "TRACKS_IMAGE": "registry.example/tracks:1",
        "TRACKS_COMMAND": '{"words": ["train.py"], "python": null, "files": {}}',
        "TRACKS_NODES": "2",
        "TRACKS_RANKS_PER_NODE": "8",
        "TRACKS_MASTER_ADDR": f"{NAME}-0.{NAME}",
        "TRACKS_MASTER_PORT": "29500",
        "TRACKS_TERMINATION_GRACE_S": "120",
        "PYTHONUNBUFFERED": "1",
    }


@pytest.mark.parametrize("kind", ["Job", "JobSet"])
def test_a_pod_understands_what_its_manifest_tells_it(kind: str) -> None:
    spec = gang(ranks=16, ranks_per_node=8, code_key="runs/gpt-7/trainer/ab.tar")
    result = variables(spec, cluster(job_kind=kind)) | {"JOB_COMPLETION_INDEX": "1"}
    pod = read_pod_environment(result)
    assert (pod.run_id, pod.attempt_id, pod.index, pod.pods, pod.ranks) == ("gpt-7", 2, 1, 2, 8)
    assert list(pod.all_ranks) == list(range(8, 16))
    assert (pod.command, pod.code_key) == (spec.command, "runs/gpt-7/trainer/ab.tar")
    assert pod.master_addr == f"{pod_host(NAME, 0, kind)}.{NAME}"
    assert (pod.master_port, pod.grace_s, str(pod.work)) == (29500, 120.0, "/var/tracks")
    without_code = variables(gang(), cluster()) | {"JOB_COMPLETION_INDEX": "0"}
    assert read_pod_environment(without_code).code_key is None


def test_the_container_runs_the_ranks_parent_and_listens_where_they_meet() -> None:
    trainer = trainer_of(gang(), cluster(python="/opt/venv/bin/python"))
    assert trainer["name"] == "trainer"
    assert trainer["command"] == ["/opt/venv/bin/python", "-m", "tracks_dagster.training.pod"]
    assert "args" not in trainer
    assert trainer["image"] == "registry.example/tracks:1"
    assert trainer["imagePullPolicy"] == "IfNotPresent"
    assert [port["containerPort"] for port in trainer["ports"]] == [29500]
    assert trainer["env"][0]["name"] == "JOB_COMPLETION_INDEX"  # others may name it


def test_code_stays_in_the_store_and_its_key_is_reported() -> None:
    spec = replace(gang(code_key="runs/gpt-7/trainer/ab.tar"), code=b"a very long archive")
    result = variables(spec, cluster())
    assert result["TRACKS_CODE_KEY"] == "runs/gpt-7/trainer/ab.tar"
    assert b"a very long archive" not in canonical_json(gang_objects(spec, cluster()))


@pytest.mark.parametrize(
    ("asked", "resources"),
    [
        ({}, {}),
        ({"cpus": 2.0}, {"cpu": "2"}),
        ({"cpus": 0.5}, {"cpu": "500m"}),
        ({"cpus": 1.0001}, {"cpu": "1001m"}),  # never less than was asked for
        ({"memory_bytes": 4 * GIB}, {"memory": str(5 * GIB)}),  # 4 GiB and 1 of /dev/shm
        ({"device_class": "h200"}, {"nvidia.com/gpu": "1"}),
        (
            GPU,
            {"cpu": "64", "memory": str(65 * GIB), "nvidia.com/gpu": "8"},
        ),
        ({"device_class": "tpu"}, {"google.com/tpu": "1"}),
        ({"device_class": "fast-cpu"}, {}),
    ],
)
def test_a_pod_is_given_what_was_asked_for_and_held_to_all_of_it_but_cpus(
    asked: Mapping[str, Any], resources: Json
) -> None:
    classes = {
        "h200": H200,
        "tpu": DeviceClass(resource="google.com/tpu"),
        "fast-cpu": DeviceClass(resource=None, node_selector={"cpu": "fast"}),
    }
    trainer = trainer_of(gang(**asked), cluster(device_classes=classes))
    requests = {**resources, "ephemeral-storage": str(GIB)}
    limits = {name: value for name, value in resources.items() if name != "cpu"}
    found = trainer["resources"]
    assert found == {"requests": requests, **({"limits": limits} if limits else {})}


def test_what_a_pod_writes_to_its_nodes_disk_is_limited_and_asked_for() -> None:
    settings = cluster(work_storage_bytes=5 * 10**8)
    assert pod_of(gang(), settings)["volumes"][0]["emptyDir"] == {"sizeLimit": "500000000"}
    requests = trainer_of(gang(), settings)["resources"]["requests"]
    assert requests == {"ephemeral-storage": "500000000"}
    assert "ephemeral-storage" not in str(trainer_of(gang(queue="team"), settings)["resources"])
    theirs = {"limits": {"ephemeral-storage": "1Mi"}}
    template = {"spec": {"containers": [{"resources": theirs}]}}
    assert trainer_of(gang(), cluster(pod_template=template))["resources"] == {
        "requests": {},
        **theirs,
    }


def test_shared_memory_and_work_are_volumes_of_the_pod() -> None:
    settings = cluster(shared_memory_bytes=8 * GIB)
    memory = {"medium": "Memory", "sizeLimit": str(8 * GIB)}
    assert pod_of(gang(), settings)["volumes"] == [
        {"name": "tracks-work", "emptyDir": {"sizeLimit": str(10 * GIB)}},
        {"name": "tracks-shared-memory", "emptyDir": memory},
    ]
    assert trainer_of(gang(), settings)["volumeMounts"] == [
        {"name": "tracks-work", "mountPath": "/var/tracks"},
        {"name": "tracks-shared-memory", "mountPath": "/dev/shm"},
    ]


@pytest.mark.parametrize(
    ("asked", "threads"),
    [
        ({}, None),
        ({"cpus": 8.0}, "8"),
        ({"cpus": 64.0, "ranks_per_node": 2}, "32"),
        ({"cpus": 0.5}, "1"),
        ({"cpus": 7.0, "ranks_per_node": 2}, "3"),
    ],
)
def test_ranks_share_the_cpus_of_their_pod(asked: Mapping[str, Any], threads: str | None) -> None:
    assert variables(gang(**asked), cluster()).get("OMP_NUM_THREADS") == threads


def test_only_ranks_with_a_device_hear_of_nccl() -> None:
    nccl = {"NCCL_DEBUG": "WARN", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}
    assert variables(gang(device_class="h200"), cluster()).items() >= nccl.items()
    assert not nccl.keys() & variables(gang(), cluster()).keys()


def test_nodes_are_selected_by_the_settings_the_class_and_the_request_in_that_order() -> None:
    settings = cluster(node_selector={"pool": "all", "gpu": "any", "disk": "ssd"})
    spec = gang(device_class="h200", node_selector={"pool": "night"})
    assert pod_of(spec, settings)["nodeSelector"] == {
        "pool": "night",
        "gpu": "h200",
        "disk": "ssd",
    }
    assert "nodeSelector" not in pod_of(gang(), cluster())


def test_tolerations_of_settings_and_request_stand_together_each_once() -> None:
    other = {"key": "spot", "operator": "Exists"}
    pod = pod_of(gang(tolerations=(other, TOLERATION)), cluster(tolerations=(TOLERATION,)))
    assert pod["tolerations"] == [TOLERATION, other]


@pytest.mark.parametrize(
    ("asked", "settled", "found"),
    [(None, None, None), (None, "low", "low"), ("high", "low", "high"), ("", "low", None)],
)
def test_the_priority_class_of_the_request_goes_first(
    asked: str | None, settled: str | None, found: str | None
) -> None:
    pod = pod_of(gang(priority_class=asked), cluster(priority_class=settled))
    assert pod.get("priorityClassName") == found


def test_excluded_nodes_are_kept_out_by_their_label() -> None:
    pod = pod_of(gang(excluded_nodes=("n2", "n1", "n2")), cluster())
    out = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n1", "n2"]}
    assert pod["affinity"] == {
        "nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [out]}]}}
    }


def test_a_topology_brings_the_gang_near_itself_and_nobody_else() -> None:
    pod = pod_of(gang(topology_key="rack"), cluster(topology_key="zone"))
    near = {"labelSelector": {"matchLabels": LABELS}, "topologyKey": "rack"}
    assert pod["affinity"] == {"podAffinity": {REQUIRED: [near]}}
    # The first pod passes because it matches its own term.
    assert LABELS.items() <= template_of(gang(), cluster())["metadata"]["labels"].items()


def test_a_pod_has_no_capability_no_credentials_and_its_images_own_user() -> None:
    pod, trainer = pod_of(gang(), cluster()), trainer_of(gang(), cluster())
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
    assert trainer["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }


def test_everything_that_is_wrong_with_a_request_is_reported_at_once() -> None:
    spec = gang(ranks=6, ranks_per_node=4, device_class="h100", cpus=0.0, memory_bytes=-1)
    with pytest.raises(InvalidInput) as caught:
        gang_objects(spec, cluster(environment={"TRACKS_NODE": "n1"}))
    assert str(caught.value).splitlines() == [
        "Cannot start gpt-7/a02 on Kubernetes; what was asked for has 5 errors:",
        "  ranks_per_node = 4 does not divide ranks = 6; every pod has the same number: use 3, for "
        "example.",
        "  cpus = 0 of each pod: use a number from 0.001 on, 8 for example.",
        "  memory_bytes = -1 of each pod: use 1 or more.",
        "  'h100' is not a device class; did you mean h200? There are: cpu, h200. Others are declared "
        "under device_classes in kubernetes.yaml.",
        "  environment: TRACKS_NODE is set by the launcher; leave it out.",
    ]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"ranks": 0}, "ranks = 0 and ranks_per_node = 1: both are 1 or more"),
        ({"ranks_per_node": 0}, "ranks_per_node = 0: both are 1 or more"),
        ({"ranks": 100_001}, "make 100001 pods; an Indexed Job has at most 100000"),
        ({"cpus": float("nan")}, "cpus = nan of each pod"),
        ({"environment": {"TRACKS_STORE": "x"}}, "the attempt's environment: TRACKS_STORE is set"),
    ],
)
def test_what_no_cluster_can_give_is_refused(asked: Mapping[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        gang_objects(gang(**asked), cluster())
