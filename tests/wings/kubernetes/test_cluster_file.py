"""A cluster's settings file: what it says, and every error of it with its line."""

from __future__ import annotations

import pytest

from tracks_dagster.track.effects.settings_file import Problem, parse_settings
from tracks_dagster.track.errors import SettingsError
from tracks_dagster.wings.kubernetes.effects.cluster_file import read_cluster
from tracks_dagster.wings.kubernetes.settings import (
    JOB_SET,
    ClassSettings,
    ClusterSettings,
    DeviceClass,
)

WHOLE = """
image: registry.example.com:5000/team/train@sha256:0123abcd
namespace: training
kubeconfig: ~/.kube/config
context: big
image_pull_policy: Always
image_pull_secrets: [registry]
service_account: gangs
python: /opt/venv/bin/python
environment: {NCCL_DEBUG: INFO, OMP_NUM_THREADS: "4"}
environment_from:
  - secretRef: {name: object-store}
  - {prefix: X_, configMapRef: {name: settings, optional: true}}
volumes:
  - name: store
    persistentVolumeClaim: {claimName: store}
volume_mounts:
  - {name: store, mountPath: /store}
  - {name: scratch, mountPath: /scratch, readOnly: true}
pod_template:
  metadata: {annotations: {team: a}}
  spec:
    schedulerName: own
    volumes: [{name: scratch, emptyDir: {}}]
job_kind: JobSet
shared_memory: 8GiB
work_storage: 50GiB
termination_grace: 3min
scheduling_timeout: 1h
start_timeout: 90s
partial_start_timeout: 2min
device_classes:
  a100: {resource: nvidia.com/gpu, node_selector: {gpu: a100}}
  big-cpu: {resource: none, node_selector: {pool: "7"}}
node_selector: {example.com/pool: train}
tolerations:
  - {key: gpu, operator: Exists, effect: NoSchedule}
  - {key: spot, value: "yes", effect: NoExecute, tolerationSeconds: 30}
priority_class: training-high
taint_quarantined_nodes: true
topology_key: topology.kubernetes.io/zone
queue: team-a
workload_priority: training
scheduler: my-scheduler
topology_rule: required
topology: network
classes:
  urgent: {queue: urgent, workload_priority: high, priority_class: training-urgent}
  sweep: {topology_key: kubernetes.io/hostname, topology_rule: preferred}
run_worker: {resources: {requests: {cpu: 250m}}}
"""


def read(text: str) -> tuple[ClusterSettings | None, list[Problem]]:
    file = parse_settings(text, "The file")
    try:
        return read_cluster(file), file.problems
    except SettingsError:
        return None, file.problems


def good(text: str) -> ClusterSettings:
    cluster, problems = read(text)
    assert problems == []
    assert cluster is not None
    return cluster


def test_an_image_is_enough() -> None:
    assert good("image: train:1") == ClusterSettings(image="train:1")


def test_every_key_of_the_file_is_read() -> None:
    assert good(WHOLE) == ClusterSettings(
        image="registry.example.com:5000/team/train@sha256:0123abcd",
        namespace="training",
        kubeconfig="~/.kube/config",
        context="big",
        image_pull_policy="Always",
        image_pull_secrets=("registry",),
        service_account="gangs",
        python="/opt/venv/bin/python",
        environment={"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4"},
        environment_from=(
            {"secretRef": {"name": "object-store"}},
            {"prefix": "X_", "configMapRef": {"name": "settings", "optional": True}},
        ),
        volumes=({"name": "store", "persistentVolumeClaim": {"claimName": "store"}},),
        volume_mounts=(
            {"name": "store", "mountPath": "/store"},
            {"name": "scratch", "mountPath": "/scratch", "readOnly": True},
        ),
        pod_template={
            "metadata": {"annotations": {"team": "a"}},
            "spec": {"schedulerName": "own", "volumes": [{"name": "scratch", "emptyDir": {}}]},
        },
        job_kind=JOB_SET,
        shared_memory_bytes=8 * 1024**3,
        work_storage_bytes=50 * 1024**3,
        termination_grace_s=180,
        scheduling_timeout_s=3600,
        start_timeout_s=90,
        partial_start_timeout_s=120,
        device_classes={
            "a100": DeviceClass(resource="nvidia.com/gpu", node_selector={"gpu": "a100"}),
            "big-cpu": DeviceClass(resource=None, node_selector={"pool": "7"}),
        },
        node_selector={"example.com/pool": "train"},
        tolerations=(
            {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"},
            {"key": "spot", "value": "yes", "effect": "NoExecute", "tolerationSeconds": 30},
        ),
        priority_class="training-high",
        taint_quarantined_nodes=True,
        topology_key="topology.kubernetes.io/zone",
        queue="team-a",
        workload_priority="training",
        scheduler="my-scheduler",
        topology_rule="required",
        topology="network",
        classes={
            "urgent": ClassSettings(
                queue="urgent", workload_priority="high", priority_class="training-urgent"
            ),
            "sweep": ClassSettings(
                topology_key="kubernetes.io/hostname", topology_rule="preferred"
            ),
        },
        run_worker={"resources": {"requests": {"cpu": "250m"}}},
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("imagee: train:1", "did you mean image?"),
        ("namespace: training", "image is missing"),
        ("[image]", "keys with values"),
        ("image: two words", "is not an image"),
        ("image: 7", "is not an image"),
        ("image: a\nnamespace: Team_A", "is not a namespace"),
        (f"image: a\nnamespace: {'n' * 64}", "is not a namespace"),
        ("image: a\nkubeconfig: kube/config", "not an absolute path"),
        ("image: a\nimage_pull_policy: Sometimes", "IfNotPresent"),
        ("image: a\nimage_pull_policy: always", "did you mean Always?"),
        ("image: a\nimage_pull_secrets: registry", "list belongs"),
        ("image: a\nimage_pull_secrets: [A B]", "image_pull_secrets[0]"),
        ("image: a\nservice_account: ''", "is not a name"),
        ("image: a\njob_kind: Deployment", "there are: Job, JobSet"),
        ("image: a\nshared_memory: 8", "8 is not a size"),
        ("image: a\nshared_memory: 8GB", "KiB, MiB, GiB"),
        ("image: a\nshared_memory: 0GiB", "out of range"),
        ("image: a\ntermination_grace: 120", "has no unit"),
        ("image: a\ntermination_grace: 1.5s", "not a whole number of seconds"),
        ("image: a\nstart_timeout: 0s", "not a whole number of seconds"),
        ("image: a\nenvironment: {OMP_NUM_THREADS: 4}", "write it in quotes"),
        ("image: a\nenvironment: {9X: a}", "cannot name a variable"),
        ("image: a\nenvironment: {TRACKS_STORE: /x}", "belongs to the launcher"),
        ("image: a\nenvironment_from: [{secretref: {name: x}}]", "did you mean secretRef?"),
        ("image: a\nenvironment_from: [{prefix: x}]", "name one source"),
        ("image: a\nenvironment_from: [{secretRef: {}}]", "name is missing"),
        ("image: a\nvolumes: [{name: store}]", "give it one source"),
        ("image: a\nvolumes: [{emptyDir: {}}]", "name is missing"),
        (
            "image: a\nvolumes: [{name: v, emptyDir: {}}, {name: v, emptyDir: {}}]",
            "line 2 has a volume v too",
        ),
        (
            "image: a\nvolume_mounts: [{name: v, mountPath: /x}]",
            "there is no volume 'v', nor any other",
        ),
        (
            "image: a\nvolumes: [{name: store, emptyDir: {}}]\n"
            "volume_mounts: [{name: stor, mountPath: /x}]",
            "did you mean store?",
        ),
        (
            "image: a\nvolumes: [{name: v, emptyDir: {}}]\nvolume_mounts: [{name: v, mountpath: /x}]",
            "did you mean mountPath?",
        ),
        (
            "image: a\nvolumes: [{name: v, emptyDir: {}}]\nvolume_mounts: [{name: v, mountPath: x}]",
            "absolute path",
        ),
        ("image: a\npod_template: {spek: {}}", "did you mean spec?"),
        ("image: a\npod_template: {spec: [x]}", "pod_template.spec"),
        ("image: a\ndevice_classes: {cpu: {}}", "there always"),
        ("image: a\ndevice_classes: {a100: {resourse: x}}", "did you mean resource?"),
        ("image: a\ndevice_classes: {a100: {resource: a b}}", "nvidia.com/gpu"),
        ("image: a\ndevice_classes: {a100: 8}", "device_classes.a100"),
        ("image: a\nnode_selector: {pool: 7}", "in quotes"),
        ("image: a\nnode_selector: {pool: a b}", "not a value of a label"),
        ("image: a\nnode_selector: {'a b': x}", "name of a label"),
        ("image: a\ntolerations: [{key: x, effect: NoRun}]", "NoSchedule"),
        ("image: a\ntolerations: [{effect: NoSchedule}]", "key is missing"),
        ("image: a\ntolerations: [{key: x, operator: Exists, value: y}]", "takes every value"),
        ("image: a\ntolerations: [{key: x, tolerationSeconds: 3}]", "NoExecute"),
        ("image: a\ntolerations: [{key: x, value: true}]", "in quotes"),
        ("image: a\ntopology_key: a b", "name of a label"),
        ("image: a\nqueue: Team A", "local queue"),
        ("image: a\ntopology_rule: requierd", "did you mean required"),
        ("image: a\nclasses: {urgent: {queue: Team A}}", "local queue"),
        ("image: a\nclasses: {urgent: {cue: a}}", "cue"),
        (f"image: a\nqueue: {'q' * 64}", "local queue"),
        ("image: a\nrun_worker: [x]", "keys with values"),
    ],
)
def test_what_cannot_be_used_is_explained(text: str, words: str) -> None:
    cluster, problems = read(text)
    assert cluster is None
    assert any(words in problem.words for problem in problems), problems


@pytest.mark.parametrize(
    "text",
    [
        "environment: {AWS_SECRET_ACCESS_KEY: hush}",
        "environment: {HF_TOKEN: hush-hush}",
        "environment: {DB: 'postgresql://me:hush-hush@host/db'}",
        "pod_template: {spec: {containers: [{env: [{name: API_KEY, value: hush-hush}]}]}}",
        "run_worker: {env_vars: ['DB_PASSWORD=hush-hush']}",
    ],
)
def test_a_secret_in_the_open_is_refused_without_being_shown(text: str) -> None:
    cluster, problems = read(f"image: a\n{text}")
    assert cluster is None
    [problem] = problems
    assert "put it into a Secret" in problem.words
    assert problem.line == 2
    assert "hush" not in problem.words


def test_all_errors_are_reported_at_once_each_with_its_line() -> None:
    _, problems = read(
        "imagee: x\nnamespace: A B\nvolumes:\n  - {name: v}\n  - {emptyDir: {}}\n"
        "shared_memory: much\ntolerations:\n  - {key: x,\n     effect: never}\n"
    )
    assert sorted({problem.line for problem in problems}) == [1, 2, 4, 5, 6, 8]


def test_an_empty_file_says_what_is_needed() -> None:
    cluster, problems = read("# nothing yet\n")
    assert cluster is None
    assert ["image is missing" in problem.words for problem in problems] == [True]
