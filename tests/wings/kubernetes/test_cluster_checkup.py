"""From what was seen of a cluster to what is missing there, and what nobody could look at."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tracks_dagster.track.records import Json
from tracks_dagster.wings.kubernetes.checkup import (
    ClusterFacts,
    Finding,
    Health,
    NodeFacts,
    QueueFacts,
    Quota,
    check_classes,
    check_cluster,
)
from tracks_dagster.wings.kubernetes.needs import (
    SETTINGS_OF_PODS,
    ObjectRef,
    Permission,
    api_groups,
    permissions,
    references,
)
from tracks_dagster.wings.kubernetes.settings import (
    HOSTNAME,
    JOB,
    JOB_SET,
    ClassSettings,
    ClusterSettings,
    DeviceClass,
)

GPU = "nvidia.com/gpu"
CLUSTER = ClusterSettings(
    image="train:1",
    namespace="training",
    service_account="gangs",
    environment_from=({"secretRef": {"name": "s3"}},),
    job_kind=JOB_SET,
    queue="team-a",
    priority_class="high",
    run_worker={"run_k8s_config": {"pod_spec_config": {"priorityClassName": "supervisors"}}},
    device_classes={"a100": DeviceClass(node_selector={"gpu": "a100"})},
)
NODE = NodeFacts(
    name="n1", labels={"gpu": "a100", HOSTNAME: "n1"}, allocatable={GPU: 8}, is_ready=True
)
GOOD = ClusterFacts(
    version="v1.34.9",
    account="system:serviceaccount:training:supervisor",
    has_namespace=True,
    denied=dict.fromkeys((*permissions(CLUSTER), SETTINGS_OF_PODS), ()),
    groups={"jobset.x-k8s.io": ("v1alpha2",), "kueue.x-k8s.io": ("v1beta2", "v1beta1")},
    found=dict.fromkeys(references(CLUSTER), True),
    nodes=(NODE,),
    priorities={"": 0, "high": 1000, "supervisors": 2000},
)


def finding(facts: ClusterFacts, check: str, cluster: ClusterSettings = CLUSTER) -> Finding:
    [found] = [each for each in check_cluster(facts, cluster) if each.check == check]
    return found


def test_a_cluster_that_has_all_is_called_ready() -> None:
    findings = check_cluster(GOOD, CLUSTER)
    assert {each.health for each in findings} == {Health.OK}
    assert len(findings) == 2 + len(permissions(CLUSTER)) + 2 + 5 + 2 + 2 + 2


def test_what_nobody_may_look_at_is_unknown_and_not_missing() -> None:
    findings = check_cluster(ClusterFacts(version=""), CLUSTER)
    by_settings = {"memory of run workers"}
    assert {e.health for e in findings if e.check not in by_settings} == {Health.UNKNOWN}


@pytest.mark.parametrize(
    ("worker", "priorities", "health"),
    [
        ("supervisors", {"": 0, "high": 1000, "supervisors": 1000}, Health.OK),
        ("supervisors", {"": 0, "high": 1000, "supervisors": 999}, Health.MISSING),
        ("supervisors", {"": 0, "high": 1000}, Health.UNKNOWN),
        (None, {"": 0, "high": 1000}, Health.MISSING),
        (None, {"": 5000, "high": 1000}, Health.OK),
        ("supervisors", None, Health.UNKNOWN),
    ],
)
def test_run_workers_below_a_gangs_priority_are_reported_with_both_values(
    worker: str | None, priorities: dict[str, int] | None, health: Health
) -> None:
    pod = {"priorityClassName": worker} if worker else {}
    cluster = replace(CLUSTER, run_worker={"run_k8s_config": {"pod_spec_config": pod}})
    found = finding(
        replace(GOOD, priorities=priorities, found={}), "priority of run workers", cluster
    )
    assert found.health is health
    if health is Health.MISSING:
        assert "any gang evicts supervisors first" in found.words
        assert "high of 1000" in found.words


def test_run_workers_without_a_limit_of_memory_are_reported() -> None:
    given = {"resources": {"requests": {"memory": "1Gi"}}}
    found = finding(GOOD, "memory of run workers", replace(CLUSTER, run_worker=given))
    assert found.health is Health.UNKNOWN
    assert "limits: {memory: 4Gi}" in found.words


@pytest.mark.parametrize(
    ("version", "health"),
    [
        ("v1.31.9", Health.MISSING),
        ("v1.32.0", Health.OK),
        ("v1.34.1-eks-113cf36", Health.OK),
        ("v1.33.5+k3s1", Health.OK),
        ("v1.37.0", Health.OK),
        ("v1.38.0", Health.UNKNOWN),
        ("bananas", Health.UNKNOWN),
    ],
)
def test_versions_are_supported_in_a_range(version: str, health: Health) -> None:
    found = finding(replace(GOOD, version=version), "version")
    assert found.health is health
    assert health is Health.OK or "1.32 to 1.37" in found.words


def test_a_namespace_that_is_not_there_is_missing() -> None:
    found = finding(replace(GOOD, has_namespace=False), "namespace")
    assert found.health is Health.MISSING
    assert "kubectl create namespace training" in found.words


def test_lacking_verbs_are_reported_with_the_account_and_the_rule_to_add() -> None:
    jobs = next(each for each in permissions(CLUSTER) if each.resource == "jobs")
    nodes = next(each for each in permissions(CLUSTER) if each.resource == "nodes")
    denied = {**GOOD.denied, jobs: ("create", "delete"), nodes: ("get",)}
    found = finding(replace(GOOD, denied=denied), "may use jobs.batch")
    assert found.health is Health.MISSING
    assert found.words == (
        "system:serviceaccount:training:supervisor may not create, delete. Add to a Role of "
        'namespace training that is bound to it: {apiGroups: ["batch"], resources: ["jobs"], verbs: '
        '["create", "delete"]}.'
    )
    found = finding(replace(GOOD, denied=denied), "may use nodes")
    assert 'ClusterRole that is bound to it: {apiGroups: [""], resources: ["nodes"]' in found.words


@pytest.mark.parametrize(
    ("group", "check", "words"),
    [
        ("jobset.x-k8s.io", "JobSet", "job_kind: Job"),
        ("kueue.x-k8s.io", "Kueue", "no queue"),
    ],
)
def test_a_group_that_the_settings_use_and_the_cluster_lacks_is_missing(
    group: str, check: str, words: str
) -> None:
    assert GOOD.groups is not None
    groups = {name: versions for name, versions in GOOD.groups.items() if name != group}
    found = finding(replace(GOOD, groups=groups), check)
    assert found.health is Health.MISSING
    assert words in found.words


def test_another_version_of_job_sets_than_the_one_used_is_missing() -> None:
    found = finding(replace(GOOD, groups={"jobset.x-k8s.io": ("v1",)}), "JobSet")
    assert found.health is Health.MISSING
    assert "v1alpha2 is needed" in found.words


def test_groups_that_the_settings_do_not_use_are_not_asked_for() -> None:
    plain = ClusterSettings(image="train:1")
    assert api_groups(plain) == ()
    assert references(plain) == ()
    assert "jobsets" not in {each.resource for each in permissions(plain)}


def test_an_object_that_is_not_there_is_reported_with_its_namespace() -> None:
    seen = {ref: ref.resource not in ("secrets", "priorityclasses") for ref in references(CLUSTER)}
    facts = replace(GOOD, found=seen)
    assert "not there in namespace training" in finding(facts, "secrets s3").words
    priority = finding(facts, "priorityclasses.scheduling.k8s.io high")
    assert priority.health is Health.MISSING
    assert "namespace" not in priority.words


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (replace(NODE, labels={"gpu": "h100"}), "these have, with other labels: n1"),
        (replace(NODE, is_ready=False), "No such node is ready or takes pods: n1"),
        (replace(NODE, allocatable={}), "is the device plugin installed?"),
    ],
)
def test_a_device_class_that_no_node_has_is_reported_with_what_is_nearest(
    node: NodeFacts, words: str
) -> None:
    found = finding(replace(GOOD, nodes=(node,)), "device class a100")
    assert found.health is Health.MISSING
    assert words in found.words


def test_nodes_with_a_taint_that_nothing_tolerates_are_reported_with_it() -> None:
    taints = ({"key": GPU, "value": "present", "effect": "NoSchedule"},)
    facts = replace(GOOD, nodes=(replace(NODE, taints=taints),))
    found = finding(facts, "device class a100")
    assert found.health is Health.UNKNOWN
    assert "n1 (nvidia.com/gpu=present:NoSchedule). Name them under tolerations" in found.words
    tolerant = replace(CLUSTER, tolerations=({"key": GPU, "operator": "Exists"},))
    assert finding(facts, "device class a100", tolerant).health is Health.OK
    spec: Json = {"spec": {"tolerations": [{"operator": "Exists"}]}}
    by_template = replace(CLUSTER, pod_template=spec)
    assert finding(facts, "device class a100", by_template).health is Health.OK


def test_a_device_class_that_some_node_has_is_reported_with_how_much() -> None:
    nodes = (NODE, replace(NODE, name="n2", allocatable={GPU: 4}))
    found = finding(replace(GOOD, nodes=nodes), "device class a100")
    assert found.words == f"2 nodes ready, up to 8 {GPU} each."
    assert finding(GOOD, "device class cpu").words == "1 node ready."


@pytest.mark.parametrize("labels", [{HOSTNAME: "ip-10-0-0-1"}, {}])
def test_nodes_that_no_exclusion_keeps_a_gang_off_are_reported(labels: dict[str, str]) -> None:
    nodes = (NODE, replace(NODE, name="n2", labels={**NODE.labels, HOSTNAME: "n2"}))
    assert finding(replace(GOOD, nodes=nodes), "nodes can be left out").health is Health.OK
    renamed = replace(NODE, name="node-7", labels=labels)
    found = finding(replace(GOOD, nodes=(*nodes, renamed)), "nodes can be left out")
    assert found.health is Health.UNKNOWN
    assert found.words.startswith("node-7: the label kubernetes.io/hostname is not the node's name")


def test_only_an_account_that_brings_dagster_up_has_to_put_its_settings() -> None:
    facts = replace(GOOD, denied={**GOOD.denied, SETTINGS_OF_PODS: ("update",)})
    found = finding(facts, "may use configmaps")
    assert found.health is Health.UNKNOWN
    assert "may not update; only `tracks up --kubernetes` needs it" in found.words


def test_every_object_that_pods_name_is_looked_for_once_and_optional_ones_are_not() -> None:
    spec: Json = {
        "serviceAccountName": "other",
        "imagePullSecrets": [{"name": "pull-2"}],
        "volumes": [
            {"name": "a", "secret": {"secretName": "tls"}},
            {"name": "b", "secret": {"secretName": "maybe", "optional": True}},
            {"name": "c", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "d", "projected": {"sources": [{"configMap": {"name": "ca"}}]}},
        ],
        "initContainers": [{"envFrom": [{"secretRef": {"name": "seed"}}]}],
        "containers": [
            {
                "envFrom": [{"secretRef": {"name": "s3"}}],
                "env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "key", "key": "k"}}}],
            }
        ],
    }
    cluster = ClusterSettings(
        image="train:1",
        image_pull_secrets=("pull",),
        environment_from=({"secretRef": {"name": "s3"}}, {"configMapRef": {"name": "conf"}}),
        volumes=({"name": "e", "configMap": {"name": "conf"}},),
        pod_template={"spec": spec},
        run_worker={"service_account_name": "worker", "env_secrets": ["dagster"]},
    )
    found = {(ref.resource, ref.name) for ref in references(cluster)}
    assert len(found) == len(references(cluster))
    assert found == {
        ("serviceaccounts", "other"),
        ("serviceaccounts", "worker"),
        ("secrets", "pull"),
        ("secrets", "pull-2"),
        ("secrets", "dagster"),
        ("secrets", "s3"),
        ("secrets", "tls"),
        ("secrets", "key"),
        ("secrets", "seed"),
        ("configmaps", "conf"),
        ("configmaps", "ca"),
        ("persistentvolumeclaims", "data"),
    }
    assert ObjectRef(resource="secrets", name="s3") in references(cluster)
    assert Permission(resource="pods/log", verbs=("get",)) in permissions(cluster)


def test_the_queues_of_other_schedulers_are_looked_for_in_their_own_groups() -> None:
    volcano = replace(CLUSTER, scheduler="volcano", job_kind=JOB)
    assert finding(GOOD, "Volcano", volcano).health is Health.MISSING
    found = [each for each in references(volcano) if each.resource == "queues"]
    assert found == [
        ObjectRef(
            resource="queues", name="team-a", group="scheduling.volcano.sh", is_namespaced=False
        )
    ]


def test_what_a_class_names_has_to_be_there_too() -> None:
    urgent = ClassSettings(queue="urgent", workload_priority="high", priority_class="now")
    settings = replace(CLUSTER, classes={"urgent": urgent})
    named = {(each.resource, each.name) for each in references(settings)}
    assert named >= {
        ("localqueues", "team-a"),
        ("localqueues", "urgent"),
        ("workloadpriorityclasses", "high"),
        ("priorityclasses", "now"),
    }
    priorities = {**(GOOD.priorities or {}), "now": 3000}
    found = finding(replace(GOOD, priorities=priorities), "priority of run workers", settings)
    assert "gangs priority class now of 3000" in found.words


@pytest.mark.parametrize(
    ("queue", "health", "words"),
    [
        (
            QueueFacts(
                name="a",
                cluster_queue="tracks",
                quotas=(Quota(flavor="h200", resource="nvidia.com/gpu", nominal="16", used="8"),),
                waiting=2,
            ),
            Health.OK,
            "ClusterQueue tracks: nvidia.com/gpu 8 of 16 (h200) in use; 2 workloads not admitted.",
        ),
        (QueueFacts(name="a", cluster_queue="x"), Health.UNKNOWN, "may not look"),
        (QueueFacts(name="a", cluster_queue="x", quotas=()), Health.MISSING, "is not there"),
    ],
    ids=["seen", "forbidden", "none"],
)
def test_the_quota_of_a_queue_is_shown(queue: QueueFacts, health: Health, words: str) -> None:
    found = finding(replace(GOOD, queues=(queue,)), "quota of queue a")
    assert found.health is health
    assert words in found.words


def test_a_class_that_the_policy_does_not_have_is_named() -> None:
    settings = replace(CLUSTER, classes={"urgnt": ClassSettings(queue="a")})
    found = check_classes(settings, ["urgent", "single"])
    assert found is not None
    assert (found.health, "did you mean urgent" in found.words) == (Health.MISSING, True)
    good = check_classes(replace(CLUSTER, classes={"urgent": ClassSettings()}), ["urgent"])
    assert good is not None
    assert good.health is Health.OK
    assert check_classes(CLUSTER, ["urgent"]) is None
