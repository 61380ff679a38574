"""How gangs run on a Kubernetes cluster: what a person's `kubernetes.yaml` says, as a value.

What one attempt asks for (`bodies.ComputeRequest`) goes before what stands here. Fragments of the
API's own objects (volumes, mounts, the pod template) stay in its own words and field names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tracks_dagster.track.records import Json

JOB, JOB_SET = "Job", "JobSet"
JOB_KINDS = (JOB, JOB_SET)
PULL_POLICIES = ("Always", "IfNotPresent", "Never")
GIB = 1024**3
CPU = "cpu"  # the device class that every cluster has
HOSTNAME = "kubernetes.io/hostname"  # the label by which a gang is kept off excluded nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClass:
    """One kind of device. resource: its name in a node's capacity, None for CPUs.

    node_selector: labels of the nodes that have it.
    """

    resource: str | None = "nvidia.com/gpu"
    node_selector: Mapping[str, str] = field(default_factory=dict)


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
    device_classes: beside "cpu", which is always there. queue: Kueue's local queue.
    run_worker: a fragment of dagster-k8s' `K8sRunLauncher` config, for the run workers.
    taint_quarantined_nodes: keep everything else off nodes in quarantine as well (`objects.taints`).
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
