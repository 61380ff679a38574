"""A person's `kubernetes.yaml` as a value: how gangs run, and whether pods reach the store.

What one attempt asks for (`bodies.ComputeRequest`) overrides these settings. Fragments of the API's
own objects (volumes, mounts, the pod template) keep the API's field names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from tracks_dagster.reasons.kube_json import mapping, mappings
from tracks_dagster.track.ports import local_path
from tracks_dagster.track.records import Json

KUBERNETES = "kubernetes"  # the launcher, as records name it
JOB, JOB_SET = "Job", "JobSet"
JOB_KINDS = (JOB, JOB_SET)
PULL_POLICIES = ("Always", "IfNotPresent", "Never")
VOLCANO, KAI = "volcano", "kai-scheduler"  # schedulers with queues of their own
# How a topology_key is asked for: by the pods' affinity, or by the queue's own annotations.
AFFINITY = "affinity"
TOPOLOGY_RULES = (AFFINITY, "required", "preferred")
GIB = 1024**3
CPU = "cpu"  # the device class that every cluster has
HOSTNAME = "kubernetes.io/hostname"  # the label by which a gang is kept off excluded nodes
TRAINER = "trainer"  # the template's container that ours is laid over; the first where none has it
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_HERE = ("localhost", "127.0.0.1", "::1", "0.0.0.0")
_READ_ONLY = ("configMap", "secret", "downwardAPI", "projected", "image")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClass:
    """One kind of device. resource: its name in a node's capacity, None for CPUs.

    node_selector: labels of the nodes that have it.
    """

    resource: str | None = "nvidia.com/gpu"
    node_selector: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassSettings:
    """What gangs of one workload class ask for, in place of what the settings say for all.

    As in `ClusterSettings`; None: as there.
    """

    queue: str | None = None
    workload_priority: str | None = None
    priority_class: str | None = None
    topology_key: str | None = None
    topology_rule: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """Where gangs run, and what every pod of them gets.

    kubeconfig: None inside a pod takes the pod's own account, else the user's default file; context:
    None takes its current one. python: the interpreter in the image. environment: variables of each
    pod, never secrets: these come by `environment_from`, as in a container's `envFrom`. pod_template:
    a PodTemplateSpec that is merged below what we set.
    job_kind: JOB, or JOB_SET where its CRD is there. shared_memory_bytes: of /dev/shm; it counts
    against a pod's memory. work_storage_bytes: what a pod may write to its node's disk before it is
    evicted. termination_grace_s: from SIGTERM to SIGKILL, longer than a save takes.
    scheduling_timeout_s: for every pod to get a node; start_timeout_s: from then on for its container
    to run, image pull included; partial_start_timeout_s: for the rest of the pods to get a node once
    the first has one.
    device_classes: beside "cpu", which is always there. scheduler: of gangs' pods, None for the
    cluster's own. queue: Kueue's local queue; of the schedulers KAI and VOLCANO their own.
    workload_priority: Kueue's WorkloadPriorityClass. topology_rule: how topology_key is asked for.
    topology: KAI's Topology object. classes: workload class → what its gangs ask for.
    run_worker: a fragment of dagster-k8s' `K8sRunLauncher` config, for the run workers.
    taint_quarantined_nodes: keep everything else off nodes in quarantine as well (`upkeep`).
    """

    image: str
    namespace: str = "default"
    kubeconfig: str | None = None
    context: str | None = None
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    service_account: str | None = None
    python: str = "python"
    environment: Mapping[str, str] = field(default_factory=dict)
    environment_from: tuple[Mapping[str, Json], ...] = ()
    volumes: tuple[Mapping[str, Json], ...] = ()
    volume_mounts: tuple[Mapping[str, Json], ...] = ()
    pod_template: Mapping[str, Json] = field(default_factory=dict)
    job_kind: str = JOB
    shared_memory_bytes: int = GIB
    work_storage_bytes: int = 10 * GIB
    termination_grace_s: int = 120
    scheduling_timeout_s: float = 900.0
    start_timeout_s: float = 600.0
    partial_start_timeout_s: float = 300.0
    device_classes: Mapping[str, DeviceClass] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Json], ...] = ()
    priority_class: str | None = None
    topology_key: str | None = None
    queue: str | None = None
    workload_priority: str | None = None
    scheduler: str | None = None
    topology_rule: str = AFFINITY
    topology: str | None = None
    classes: Mapping[str, ClassSettings] = field(default_factory=dict)
    run_worker: Mapping[str, Json] = field(default_factory=dict)
    taint_quarantined_nodes: bool = False

    def __post_init__(self) -> None:
        if self.job_kind not in JOB_KINDS:
            raise ValueError(f"job_kind is {self.job_kind!r}; there are {', '.join(JOB_KINDS)}.")
        if self.image_pull_policy not in PULL_POLICIES:
            raise ValueError(
                f"image_pull_policy is {self.image_pull_policy!r}; there are "
                f"{', '.join(PULL_POLICIES)}."
            )
        for rule in (self.topology_rule, *(each.topology_rule for each in self.classes.values())):
            if rule is not None and rule not in TOPOLOGY_RULES:
                raise ValueError(
                    f"topology_rule is {rule!r}; there are {', '.join(TOPOLOGY_RULES)}."
                )
        if not self.image:
            raise ValueError("image is empty; name the image that gangs run.")
        if self.shared_memory_bytes < 1:
            raise ValueError("shared_memory is at least 1 byte.")
        if self.work_storage_bytes < 1:
            raise ValueError("work_storage is at least 1 byte.")
        for name in (
            "termination_grace_s",
            "scheduling_timeout_s",
            "start_timeout_s",
            "partial_start_timeout_s",
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} has to be more than 0 s.")


def queues_of(cluster: ClusterSettings) -> tuple[str, ...]:
    """Return every queue that the settings name, each once."""
    named = (cluster.queue, *(each.queue for each in cluster.classes.values()))
    return tuple(dict.fromkeys(each for each in named if each))


# Whether pods can reach the object store, as far as settings show. Pods see what their volumes mount,
# never the folders of the machine that declares a run.


def why_unreachable(store_url: str, cluster: ClusterSettings) -> str | None:
    """Return why the gang's pods cannot write to the store; None when the settings allow it.

    Networks and credentials are not checked.
    """
    path = local_path(store_url)
    return _endpoint_problem(cluster) if path is None else _folder_problem(path, cluster)


def gives_credentials(cluster: ClusterSettings) -> bool:
    """Whether anything in the settings may give pods the credentials of a remote store."""
    return bool(cluster.environment_from or cluster.service_account or cluster.pod_template)


def _folder_problem(path: str, cluster: ClusterSettings) -> str | None:
    mount = _mount_of(path, cluster)
    if mount is None:
        return (
            f"The store {path} is a folder of this machine, which no volume mounts into the pods. Set "
            "TRACKS_STORE to s3://bucket/prefix, or mount the shared volume that holds it at the same "
            "path (volumes and volume_mounts in kubernetes.yaml)."
        )
    volume = next((v for v in _volumes(cluster) if v.get("name") == mount.get("name")), {})
    at = f"volume {mount.get('name')} at {mount.get('mountPath')}"
    if "emptyDir" in volume:
        return (
            f"The store {path} lies on {at}, an emptyDir: every pod has its own, and it goes with the "
            "pod. Mount a volume there that all pods share."
        )
    if mount.get("readOnly") or any(source in volume for source in _READ_ONLY):
        return f"The store {path} lies on {at}, which is read-only; ranks write there."
    return None


def _endpoint_problem(cluster: ClusterSettings) -> str | None:
    for name in _ENDPOINTS:
        url = cluster.environment.get(name)
        if url is not None and urlsplit(url).hostname in _HERE:
            return (
                f"{name} is {url}: in a pod, that is the pod itself. Name the address that the store "
                "has within the cluster."
            )
    return None


def _mount_of(path: str, cluster: ClusterSettings) -> Mapping[str, Json] | None:
    """Return the deepest mount that holds `path`."""
    wanted = PurePosixPath(path)
    holding = [
        mount
        for mount in _mounts(cluster)
        if wanted.is_relative_to(PurePosixPath(str(mount.get("mountPath"))))
    ]
    return max(holding, key=lambda mount: len(str(mount.get("mountPath"))), default=None)


def _mounts(cluster: ClusterSettings) -> Iterator[Mapping[str, Json]]:
    yield from cluster.volume_mounts
    containers = mappings(_spec(cluster).get("containers"))
    named = [each for each in containers if each.get("name") == TRAINER]
    for container in (named or containers)[:1]:
        yield from mappings(container.get("volumeMounts"))


def _volumes(cluster: ClusterSettings) -> list[Mapping[str, Json]]:
    return [*cluster.volumes, *mappings(_spec(cluster).get("volumes"))]


def _spec(cluster: ClusterSettings) -> Mapping[str, Json]:
    return mapping(cluster.pod_template.get("spec"))
