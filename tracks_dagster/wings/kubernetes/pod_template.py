"""The pod of a gang: a person's own template, the settings over it, the request over both.

Below the template are defaults that let a plain cluster run it: no root, no account's token. Maps are
merged key by key; lists of the API that have names (containers, volumes, variables) are merged by
them, and lists that have none are joined. Nobody overrides what makes a gang a gang (`template_rules`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from copy import deepcopy

from tracks_dagster.attempts.ports import GangSpec
from tracks_dagster.track import names
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.records import Json
from tracks_dagster.wings.kubernetes.compute_demand import (
    CPUS,
    Demand,
    affinity,
    threads,
)
from tracks_dagster.wings.kubernetes.job_names import (
    ANNOTATION_ATTEMPT,
    gang_labels,
    job_name,
    pod_host,
)
from tracks_dagster.wings.kubernetes.merging import by_key, distinct, merged
from tracks_dagster.wings.kubernetes.queueing import (
    CLUSTER_QUEUE_LABEL,
    asked_of_cluster,
    is_queued_by_kueue,
    marks_of,
)
from tracks_dagster.wings.kubernetes.settings import AFFINITY, GIB, TRAINER, ClusterSettings
from tracks_dagster.wings.kubernetes.template_rules import (
    TemplateParts,
    check_variables,
    read_template,
)

# What every pod of ours is denied: as much as any image can do without.
#
# The user is the image's own: a number that is set here could not write to the volumes of images
# that run as another. A template, or `run_worker` of the settings, may allow more or less.

POD_SECURITY: Json = {"seccompProfile": {"type": "RuntimeDefault"}}
CONTAINER_SECURITY: Json = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}

MODULE = "tracks_dagster.training.pod"
WORK = "/var/tracks"  # an emptyDir: what a pod writes there is deleted with it
MASTER_PORT = 29500  # torchrun's own default

INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"
SHARED_MEMORY = "/dev/shm"

# What a node has to have free on its disk: journals and logs of days. The volume's limit is for what
# runs away, and is asked of no node.
DISK, DISK_REQUEST_BYTES = "ephemeral-storage", GIB
_WORK_VOLUME = "tracks-work"
_SHARED_VOLUME = "tracks-shared-memory"
_OWN_VOLUMES = {_WORK_VOLUME: WORK, _SHARED_VOLUME: SHARED_MEMORY}
_POD_DEFAULTS: Json = {
    "automountServiceAccountToken": False,  # ranks ask the object store, never the API server
    "enableServiceLinks": False,  # no variables for every Service of the namespace
    "securityContext": POD_SECURITY,
}
_CONTAINER_DEFAULTS: Json = {"securityContext": CONTAINER_SECURITY}

# A failure has to be read in the log, and has to end the process. 3: torch's own default, end without
# aborting the communicators, which may hang; torchrun's agent would set 1 where nothing is set
# (torch 2.13: ProcessGroupNCCL.hpp, local_elastic_agent.py). Interfaces differ: NCCL_SOCKET_IFNAME
# is left to the settings.
_NCCL = {"NCCL_DEBUG": "WARN", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}

_FIELDS = {
    # Declared, though the Job's controller would add it: what it adds comes last, and a variable can
    # name only those before it.
    names.ENV_INDEX: f"metadata.annotations['{INDEX_ANNOTATION}']",
    names.ENV_NODE: "spec.nodeName",
    names.ENV_POD: "metadata.name",
    names.ENV_POD_UID: "metadata.uid",
}


# What Kueue writes on admitted pods; a version that writes none leaves it empty.
_GRANTED = {names.ENV_CLUSTER_QUEUE: f"metadata.labels['{CLUSTER_QUEUE_LABEL}']"}


def read_parts(spec: GangSpec, cluster: ClusterSettings, problems: list[str]) -> TemplateParts:
    """Return the template's parts; adds to `problems` what in it or the settings is not theirs to
    say."""
    parts = read_template(cluster.pod_template, problems)
    problems += check_variables(cluster.environment, "environment")
    problems += check_variables(spec.environment, "the attempt's environment")
    problems += _mount_problems(parts, cluster)
    return parts


def pod_template(
    spec: GangSpec, cluster: ClusterSettings, wanted: Demand, parts: TemplateParts
) -> Json:
    """Return the PodTemplateSpec of a gang, of parts that `read_parts` found no fault with."""
    labels = gang_labels(spec.ref)
    marks = marks_of(wanted)
    own_annotations = {ANNOTATION_ATTEMPT: spec.ref.key}
    return {
        "metadata": {
            "labels": merged(parts.labels, {**marks.pod_labels, **labels}),
            "annotations": merged(parts.annotations, {**marks.pod_annotations, **own_annotations}),
        },
        "spec": _pod(spec, cluster, wanted, parts),
    }


def _pod(spec: GangSpec, cluster: ClusterSettings, wanted: Demand, parts: TemplateParts) -> Json:
    below = merged(_pod_defaults(parts.spec), parts.spec)
    own: dict[str, Json] = {
        "restartPolicy": "Never",
        "subdomain": job_name(spec.ref),
        "terminationGracePeriodSeconds": cluster.termination_grace_s,
        "containers": [_trainer(spec, cluster, wanted, parts), *deepcopy(list(parts.others))],
        "volumes": by_key("name", parts.volumes, cluster.volumes, _volumes(cluster)),
    }
    if cluster.service_account is not None:
        own["serviceAccountName"] = cluster.service_account
    if wanted.priority_class is not None:
        own["priorityClassName"] = wanted.priority_class
    if wanted.scheduler is not None:
        own["schedulerName"] = wanted.scheduler
    secrets = [{"name": name} for name in cluster.image_pull_secrets]
    joined = {
        "imagePullSecrets": by_key("name", below.get("imagePullSecrets") or (), secrets),
        "tolerations": distinct(
            below.get("tolerations") or (), cluster.tolerations, spec.compute.tolerations
        ),
        "nodeSelector": merged(below.get("nodeSelector") or {}, wanted.node_selector),
        "affinity": affinity(
            below.get("affinity") or {},
            excluded_nodes=spec.compute.excluded_nodes,
            topology_key=wanted.topology_key if wanted.topology_rule == AFFINITY else None,
            labels=gang_labels(spec.ref),
        ),
    }
    return merged(below, own | {field: value for field, value in joined.items() if value})


def _pod_defaults(template: Mapping[str, Json]) -> Json:
    """A pod in the node's network finds the others' names only with another DNS policy."""
    if template.get("hostNetwork"):
        return _POD_DEFAULTS | {"dnsPolicy": "ClusterFirstWithHostNet"}
    return _POD_DEFAULTS


def _trainer(
    spec: GangSpec, cluster: ClusterSettings, wanted: Demand, parts: TemplateParts
) -> Json:
    below = merged(_CONTAINER_DEFAULTS, parts.trainer)
    port = {"name": "rendezvous", "containerPort": MASTER_PORT, "protocol": "TCP"}
    ports = [p for p in below.get("ports") or () if p.get("containerPort") != MASTER_PORT]
    own: dict[str, Json] = {
        "name": TRAINER,
        "image": cluster.image,
        "imagePullPolicy": cluster.image_pull_policy,
        "command": [cluster.python, "-m", MODULE],
        "env": environment(spec, cluster, wanted, below.get("env") or ()),
        "ports": [*ports, port],
        "volumeMounts": by_key(
            "mountPath", below.get("volumeMounts") or (), cluster.volume_mounts, _own_mounts()
        ),
    }
    sources = distinct(below.get("envFrom") or (), cluster.environment_from)
    if sources:
        own["envFrom"] = sources
    own["resources"] = _resources(wanted, cluster, below.get("resources") or {})
    return merged(below, own)


def _resources(wanted: Demand, cluster: ClusterSettings, template: Mapping[str, Json]) -> Json:
    """Return requests and limits; a template that limits CPUs or disk keeps that such a limit is there.

    A limit below its request has every pod refused: of CPUs it becomes what the run asks for. Kueue
    admits no gang that asks for a resource which its queue does not cover: there disk is asked for only
    where the template does.
    """
    limited = template.get("limits") or {}
    requests, limits = dict(wanted.requests), dict(wanted.limits)
    if CPUS in limited and CPUS in requests:
        limits[CPUS] = requests[CPUS]
    is_set = DISK in limited or DISK in (template.get("requests") or {})
    if not is_set and wanted.queue is None:
        requests[DISK] = str(min(DISK_REQUEST_BYTES, cluster.work_storage_bytes))
    return {"requests": requests, **({"limits": limits} if limits else {})}


def _volumes(cluster: ClusterSettings) -> list[Json]:
    """Docker's 64 MiB of /dev/shm are too small for the workers of a data loader."""
    memory = {"medium": "Memory", "sizeLimit": str(cluster.shared_memory_bytes)}
    return [
        {"name": _WORK_VOLUME, "emptyDir": {"sizeLimit": str(cluster.work_storage_bytes)}},
        {"name": _SHARED_VOLUME, "emptyDir": memory},
    ]


def _own_mounts() -> list[Json]:
    return [{"name": name, "mountPath": path} for name, path in _OWN_VOLUMES.items()]


def _mount_problems(parts: TemplateParts, cluster: ClusterSettings) -> list[str]:
    """Return which volumes and mounts are the launcher's, and which mounts have no volume."""
    found = []
    volumes = {str(volume.get("name")) for volume in (*parts.volumes, *cluster.volumes)}
    for name in sorted(volumes & set(_OWN_VOLUMES)):
        found.append(f"volume {name} is the launcher's; choose another name.")
    for path, name in _mounts(parts, cluster):
        if path.rstrip("/") in _OWN_VOLUMES.values():
            hint = "; set shared_memory in kubernetes.yaml" if path.startswith("/dev") else ""
            found.append(f"a volume mount at {path}: the launcher mounts its own there{hint}.")
        elif name not in volumes:
            there = ", ".join(sorted(volumes)) or "none"
            found.append(f"the volume mount at {path} names volume {name}; there are: {there}.")
    return found


def _mounts(parts: TemplateParts, cluster: ClusterSettings) -> Iterable[tuple[str, str]]:
    for mount in (*(parts.trainer.get("volumeMounts") or ()), *cluster.volume_mounts):
        yield str(mount.get("mountPath")), str(mount.get("name"))


def environment(
    spec: GangSpec, cluster: ClusterSettings, wanted: Demand, template: Iterable[Mapping[str, Json]]
) -> list[Json]:
    """Return the `env` of the container that trains. template: the entries of its template.

    The later layer wins: helpful defaults, the template, the settings, the attempt. Nobody overrides
    the variables that name the attempt. No value is a secret.

    `$(NAME)` in a value of the settings or the template is Kubernetes' own reference to a variable;
    in one of the attempt it is text.
    """
    fields = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in _fields(wanted).items()
    ]
    own = {name: _literal(value) for name, value in _of_attempt(spec, cluster, wanted).items()}
    asked = {name: _literal(value) for name, value in spec.environment.items()}
    return by_key(
        "name",
        fields,
        _entries(own),
        _entries(_helpful(spec, wanted)),
        template,
        _entries(cluster.environment),
        _entries(asked),
    )


def master_host(spec: GangSpec, job_kind: str) -> str:
    """Return the name of the first pod in the cluster's DNS, as pods of its namespace find it."""
    name = job_name(spec.ref)
    return f"{pod_host(name, 0, job_kind)}.{name}"


def _of_attempt(spec: GangSpec, cluster: ClusterSettings, wanted: Demand) -> dict[str, str]:
    values = {
        names.ENV_STORE: spec.store_url,
        names.ENV_RUN_ID: spec.run_id,
        names.ENV_ATTEMPT_ID: str(spec.attempt_id),
        names.ENV_OPENED_SEQ: str(spec.opened_seq),
        names.ENV_WORK: WORK,
        names.ENV_IMAGE: cluster.image,
        names.ENV_COMMAND: json.dumps(to_json(spec.command)),
    }
    if asked := asked_of_cluster(wanted, spec.workload_class):
        values[names.ENV_ASKED] = json.dumps(asked)
    if spec.code_key is not None:  # the pod takes it from the store; a manifest has no room for it
        values[names.ENV_CODE_KEY] = spec.code_key
    return values | {
        names.ENV_NODES: str(wanted.nodes),
        names.ENV_RANKS_PER_NODE: str(wanted.ranks_per_node),
        names.ENV_MASTER_ADDR: master_host(spec, cluster.job_kind),
        names.ENV_MASTER_PORT: str(MASTER_PORT),
        names.ENV_TERMINATION_GRACE_S: str(cluster.termination_grace_s),
    }


def _helpful(spec: GangSpec, wanted: Demand) -> dict[str, str]:
    found = {"PYTHONUNBUFFERED": "1"}  # a log that ends where the process did
    each = threads(spec.compute)
    if each is not None:
        found["OMP_NUM_THREADS"] = str(each)
    return found | (_NCCL if wanted.device.resource is not None else {})


def _fields(wanted: Demand) -> dict[str, str]:
    return {**_FIELDS, **(_GRANTED if is_queued_by_kueue(wanted) else {})}


def _entries(values: Mapping[str, str]) -> list[Json]:
    return [{"name": name, "value": value} for name, value in values.items()]


def _literal(value: str) -> str:
    """Return the value so that a kubelet leaves it as it is: it reads $(NAME), and $$ as one $."""
    return value.replace("$", "$$") if "$(" in value or "$$" in value else value
