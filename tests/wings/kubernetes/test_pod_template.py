"""A person's own pod template: what it adds is kept, what is above it wins, what breaks is refused."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wings.kubernetes_requests import (
    cluster,
    gang,
    pod_of,
    template_of,
    trainer_of,
    variables,
)
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json
from tracks_dagster.wings.kubernetes.manifests import gang_objects
from tracks_dagster.wings.kubernetes.merging import by_key, distinct, merged

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
A_SECRET = {"name": "X_TOKEN", "value": "secret-1"}
OUT = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n1"]}


def trained_by(**container: Any) -> Json:
    """Return a template whose only container says that."""
    return {"spec": {"containers": [container]}}


def wrong(template: Json = None, **settings: Any) -> list[str]:
    """Return the lines that refuse it, without the first."""
    with pytest.raises(InvalidInput) as caught:
        gang_objects(gang(), cluster(pod_template=template or {}, **settings))
    return [line.strip() for line in str(caught.value).splitlines()[1:]]


@pytest.mark.parametrize(
    ("containers", "merged_one", "others"),
    [
        ([{"name": "a"}, {"name": "trainer", "tty": True}], True, ["a"]),
        ([{"name": "trainer", "tty": True}, {"name": "b"}], True, ["b"]),
        ([{"name": "a", "tty": True}, {"name": "b"}], True, ["b"]),  # the first one, without a name
        ([{"tty": True}], True, []),
        ([], None, []),
    ],
)
def test_ours_is_laid_over_the_trainer_or_the_first_and_the_others_run_beside_it(
    containers: list[Json], merged_one: bool | None, others: list[str]
) -> None:
    pod = pod_of(gang(), cluster(pod_template={"spec": {"containers": containers}}))
    assert [each["name"] for each in pod["containers"]] == ["trainer", *others]
    assert pod["containers"][0].get("tty") is merged_one
    assert pod["containers"][0]["command"][1:] == ["-m", "tracks_dagster.training.pod"]


def test_what_nobody_else_says_is_kept() -> None:
    template = {
        "metadata": {"labels": {"team": "x"}, "annotations": {"note": "y"}},
        "spec": {
            "runtimeClassName": "nvidia",
            "initContainers": [{"name": "warm-up", "image": "busybox"}],
            "volumes": [{"name": "cache", "emptyDir": {}}],
            "containers": [{"volumeMounts": [{"name": "cache", "mountPath": "/cache"}]}],
        },
    }
    found = template_of(gang(), cluster(pod_template=template))
    assert found["metadata"]["labels"].items() >= {"team": "x", "tracks/attempt-id": "2"}.items()
    assert found["metadata"]["annotations"] == {"note": "y", "tracks/attempt": "gpt-7/a02"}
    pod = found["spec"]
    assert pod["runtimeClassName"] == "nvidia"
    assert pod["initContainers"] == [{"name": "warm-up", "image": "busybox"}]
    names = [volume["name"] for volume in pod["volumes"]]
    assert names == ["cache", "tracks-work", "tracks-shared-memory"]
    paths = [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]]
    assert paths == ["/cache", "/var/tracks", "/dev/shm"]


def test_a_template_changes_what_is_only_a_default_and_takes_it_away_with_null() -> None:
    template = {
        "spec": {
            "automountServiceAccountToken": True,
            "securityContext": {"runAsUser": 7, "runAsNonRoot": True, "seccompProfile": None},
            "containers": [
                {
                    "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
                    "env": [{"name": "NCCL_DEBUG", "value": "INFO"}],
                }
            ],
        }
    }
    spec, settings = gang(device_class="h200"), cluster(pod_template=template)
    pod = pod_of(spec, settings)
    assert pod["automountServiceAccountToken"] is True
    context = pod["securityContext"]
    assert context == {"runAsUser": 7, "runAsNonRoot": True}
    capabilities = trainer_of(spec, settings)["securityContext"]["capabilities"]
    assert capabilities == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert variables(spec, settings)["NCCL_DEBUG"] == "INFO"
    bare = pod_of(gang(), cluster(pod_template={"spec": {"securityContext": None}}))
    assert "securityContext" not in bare


def test_the_request_goes_before_the_settings_and_these_before_the_template() -> None:
    template = {
        "spec": {
            "serviceAccountName": "theirs",
            "priorityClassName": "theirs",
            "nodeSelector": {"a": "theirs", "b": "theirs", "c": "theirs"},
            "containers": [
                {
                    "env": [{"name": name, "value": "theirs"} for name in "ABC"],
                    "resources": {
                        "limits": {"memory": "1Gi", "cpu": "1", "rdma/hca": 1},
                        "requests": {"memory": "1Gi"},
                    },
                }
            ],
        }
    }
    settings = cluster(
        pod_template=template,
        service_account="ours",
        node_selector={"b": "settings", "c": "settings"},
        environment={"B": "settings", "C": "settings"},
    )
    spec = gang(node_selector={"c": "request"}, environment={"C": "request"}, cpus=4.0)
    pod = pod_of(spec, settings)
    assert pod["serviceAccountName"] == "ours"
    assert pod["priorityClassName"] == "theirs"
    assert pod["nodeSelector"] == {"a": "theirs", "b": "settings", "c": "request"}
    answer = variables(spec, settings)
    assert [answer[name] for name in "ABC"] == ["theirs", "settings", "request"]
    resources = pod["containers"][0]["resources"]
    assert resources["limits"] == {"memory": "1Gi", "cpu": "4", "rdma/hca": 1}
    assert resources["requests"] == {
        "memory": "1Gi",
        "cpu": "4",
        "ephemeral-storage": str(1024**3),
    }


def test_lists_without_names_are_joined() -> None:
    spot, gpu = {"key": "spot", "operator": "Exists"}, {"key": "gpu", "operator": "Exists"}
    one, two = {"secretRef": {"name": "one"}}, {"secretRef": {"name": "two"}}
    template = {
        "spec": {
            "tolerations": [spot],
            "imagePullSecrets": [{"name": "one"}],
            "containers": [{"envFrom": [one]}],
        }
    }
    settings = cluster(
        pod_template=template, environment_from=(two, one), image_pull_secrets=("two", "one")
    )
    pod = pod_of(gang(tolerations=(gpu, spot)), settings)
    assert pod["tolerations"] == [spot, gpu]
    assert pod["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}]
    assert pod["containers"][0]["envFrom"] == [one, two]


def test_ports_of_the_template_stand_beside_ours_also_one_number_in_two_protocols() -> None:
    theirs = [
        {"containerPort": 53, "protocol": "TCP"},
        {"containerPort": 53, "protocol": "UDP"},
        {"containerPort": 29500},
    ]
    ports = trainer_of(gang(), cluster(pod_template=trained_by(ports=theirs)))["ports"]
    ours = {"name": "rendezvous", "containerPort": 29500, "protocol": "TCP"}
    assert ports == [*theirs[:2], ours]


def test_excluded_nodes_are_kept_out_of_every_term_of_the_templates_affinity() -> None:
    east, west = ({"key": "zone", "operator": "In", "values": [zone]} for zone in ("e", "w"))
    field = {"key": "metadata.name", "operator": "In", "values": ["n9"]}
    near = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "cache"}}}
    affinity = {
        "nodeAffinity": {
            REQUIRED: {
                "nodeSelectorTerms": [
                    {"matchExpressions": [east]},
                    {"matchExpressions": [west], "matchFields": [field]},
                    {"matchFields": [field]},
                    {},  # matches no node, and must not begin to
                ]
            },
            "preferredDuringSchedulingIgnoredDuringExecution": [],
        },
        "podAffinity": {REQUIRED: [near]},
        "podAntiAffinity": {REQUIRED: [near]},
    }
    settings = cluster(pod_template={"spec": {"affinity": affinity}})
    found = pod_of(gang(excluded_nodes=("n1",), topology_key="rack"), settings)["affinity"]
    assert found["nodeAffinity"][REQUIRED]["nodeSelectorTerms"] == [
        {"matchExpressions": [east, OUT]},
        {"matchExpressions": [west, OUT], "matchFields": [field]},
        {"matchFields": [field], "matchExpressions": [OUT]},
        {},
    ]
    assert found["podAffinity"][REQUIRED][0] == near
    assert found["podAffinity"][REQUIRED][1]["topologyKey"] == "rack"
    assert found["podAntiAffinity"] == affinity["podAntiAffinity"]
    assert pod_of(gang(), settings)["affinity"] == affinity


def test_a_pod_in_the_nodes_network_still_asks_the_clusters_dns() -> None:
    hosted = pod_of(gang(), cluster(pod_template={"spec": {"hostNetwork": True}}))
    assert hosted["dnsPolicy"] == "ClusterFirstWithHostNet"
    own = {"spec": {"hostNetwork": True, "dnsPolicy": "None"}}
    assert pod_of(gang(), cluster(pod_template=own))["dnsPolicy"] == "None"
    assert "dnsPolicy" not in pod_of(gang(), cluster())


def test_a_volume_of_the_settings_replaces_the_templates_of_that_name() -> None:
    theirs = {"name": "data", "emptyDir": {}}
    ours = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    template = {"spec": {"volumes": [theirs]}}
    assert pod_of(gang(), cluster(pod_template=template, volumes=(ours,)))["volumes"][0] == ours


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("plain", "plain"),
        ("5$ a$b", "5$ a$b"),
        ("$(HOME)", "$$(HOME)"),
        ("$$(A) $b", "$$$$(A) $$b"),
    ],
)
def test_a_value_of_the_attempt_reaches_the_ranks_as_it_is(value: str, written: str) -> None:
    """A kubelet reads $(NAME) as a variable and $$ as one $."""
    assert variables(gang(environment={"A": value}), cluster())["A"] == written
    assert variables(gang(), cluster(environment={"A": value}))["A"] == value  # there it is meant


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ({"kind": "PodTemplate"}, "pod_template.kind: a PodTemplateSpec has metadata and spec"),
        ({"completionMode": "NonIndexed"}, "pod_template.completionMode: a PodTemplateSpec has"),
        ({"metadata": {"name": "x"}}, "pod_template.metadata.name: a gang's pods take labels and"),
        ({"metadata": {"labels": {"tracks/attempt-id": "1"}}}, "tracks/attempt-id is set by"),
        ({"metadata": {"annotations": {"tracks/attempt": "1"}}}, "tracks/attempt is set by the"),
        (
            {"metadata": {"labels": {"app.kubernetes.io/managed-by": "helm"}}},
            "app.kubernetes.io/managed-by is set by the launcher; leave it out.",
        ),
        (
            {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "q"}}},
            "is set by the launcher; set queue in kubernetes.yaml; leave it out.",
        ),
        ({"metadata": {"labels": {"batch.kubernetes.io/job-name": "x"}}}, "is set by the launcher"),
        ({"spec": {"restartPolicy": "OnFailure"}}, "pod_template.spec.restartPolicy: a gang's pods"),
        ({"spec": {"subdomain": "x"}}, "pod_template.spec.subdomain: the ranks find each other"),
        ({"spec": {"nodeName": "n1"}}, "pod_template.spec.nodeName: the scheduler places"),
        ({"spec": {"terminationGracePeriodSeconds": 5}}, "set termination_grace in kubernetes.yaml"),
        (trained_by(command=["sh"]), "pod_template.spec.containers[0].command: every pod runs"),
        (trained_by(args=["x"]), "pod_template.spec.containers[0].args: every pod runs"),
        (trained_by(image="x"), "set image in kubernetes.yaml"),
        (trained_by(imagePullPolicy="Always"), "set image_pull_policy in kubernetes.yaml"),
        (trained_by(restartPolicy="Always"), "containers[0].restartPolicy: a gang's pods are never"),
        (
            trained_by(env=[{"name": "JOB_COMPLETION_INDEX", "value": "0"}]),
            "pod_template.spec.containers[0].env: JOB_COMPLETION_INDEX is set by the launcher",
        ),
        (
            {"spec": {"containers": [{}, {"name": "b", "env": [A_SECRET]}]}},
            "pod_template.spec, container b: X_TOKEN holds a secret",
        ),
        ({"spec": []}, "pod_template.spec is [] and has to be a mapping."),
        ({"spec": {"containers": {"name": "x"}}}, "containers is {'name': 'x'} and has to be a list"),
        (trained_by(env={"A": "b"}), "containers[0].env is {'A': 'b'} and has to be a list"),
        ({"spec": {"tolerations": "all"}}, "tolerations is 'all' and has to be a list of mappings."),
        (
            {"spec": {"affinity": {"nodeAffinity": {REQUIRED: []}}}},
            "has to be a mapping.",
        ),
        (
            {"spec": {"volumes": [{"name": "tracks-work", "emptyDir": {}}]}},
            "volume tracks-work is the launcher's; choose another name.",
        ),
        (
            trained_by(volumeMounts=[{"name": "x", "mountPath": "/dev/shm"}]),
            "a volume mount at /dev/shm: the launcher mounts its own there; set shared_memory",
        ),
        (
            trained_by(volumeMounts=[{"name": "x", "mountPath": "/x"}]),
            "the volume mount at /x names volume x; there are: none.",
        ),
    ],
)  # fmt: skip
def test_what_would_break_a_gang_is_refused_with_its_place(template: Json, words: str) -> None:
    lines = wrong(template)
    assert len(lines) == 1
    assert words in lines[0]


def test_a_secret_among_the_settings_is_refused_and_not_repeated() -> None:
    lines = wrong(
        environment={"AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI", "URL": "s3://a:pass-word@host"}
    )
    assert [line.split(" holds")[0] for line in lines] == [
        "environment: AWS_SECRET_ACCESS_KEY",
        "environment: URL",
    ]
    assert "environment_from" in lines[0]
    assert not any(secret in line for line in lines for secret in ("wJalr", "pass-word"))


def test_all_that_is_wrong_is_reported_at_once() -> None:
    template = {
        "kind": "Pod",
        "spec": {
            "restartPolicy": "Always",
            "containers": [{"command": ["x"], "env": [{"name": "TRACKS_POD"}]}],
        },
    }
    assert len(wrong(template, environment={"TRACKS_STORE": "x"})) == 5


def test_what_only_repeats_ours_is_not_a_contradiction() -> None:
    template = {"spec": {"restartPolicy": "Never", "containers": None, "volumes": None}}
    assert pod_of(gang(), cluster(pod_template=template)) == pod_of(gang(), cluster())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=8,
)
maps = st.dictionaries(st.sampled_from("abc"), json_values)


def without_nulls(value: Json) -> Json:
    """Return the value without keys whose value is None, as far as there are only maps."""
    if not isinstance(value, dict):
        return value
    return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}


@given(below=maps, above=maps)
def test_a_merge_says_all_of_what_is_above_and_changes_neither(below: Json, above: Json) -> None:
    before = deepcopy((below, above))
    result = merged(below, above)
    assert (below, above) == before
    assert merged(result, above) == result  # once is enough
    assert merged({}, above) == without_nulls(above)
    for key, value in above.items():
        if value is None:
            assert key not in result
        elif not isinstance(value, dict):
            assert result[key] == value
    assert {key: result[key] for key in below if key not in above} == {
        key: value for key, value in below.items() if key not in above
    }


def test_entries_with_a_name_replace_each_other_in_place_and_others_stand_once() -> None:
    low = [{"name": "a", "value": 1}, {"name": "b", "value": 1}]
    high = [{"name": "c", "value": 2}, {"name": "a", "value": 2}]
    assert by_key("name", low, high) == [
        {"name": "a", "value": 2},
        {"name": "b", "value": 1},
        {"name": "c", "value": 2},
    ]
    assert distinct(low, [low[1], high[0]]) == [*low, high[0]]
