"""What a cluster has to have before a gang can run there: permissions, objects, kinds of objects.

The one list of it: `tracks doctor --kubernetes` asks for it, and the roles of a deployment grant it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tracks_dagster.reasons.kube_json import mapping, mappings
from tracks_dagster.track.records import Json
from tracks_dagster.wings.kubernetes.settings import (
    JOB_SET,
    KAI,
    VOLCANO,
    ClusterSettings,
    queues_of,
)

JOB_SET_GROUP, JOB_SET_VERSION = "jobset.x-k8s.io", "v1alpha2"
KUEUE_GROUP = "kueue.x-k8s.io"
QUEUE_GROUPS = {VOLCANO: "scheduling.volcano.sh", KAI: "scheduling.run.ai"}  # their own queues
SCHEDULING_GROUP = "scheduling.k8s.io"

_GANG = ("create", "delete", "get", "list", "watch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """Verbs on one resource. resource: as in a role, "pods/log"; group: "" is the core one."""

    resource: str
    verbs: tuple[str, ...]
    group: str = ""
    is_namespaced: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRef:
    """An object that the settings name. resource: its plural; group: "" is the core one."""

    resource: str
    name: str
    group: str = ""
    is_namespaced: bool = True


# For `tracks up --kubernetes` alone, by a person's own account: no role of a deployment grants it.
SETTINGS_OF_PODS = Permission(resource="configmaps", verbs=("create", "update"))


# To show the quota of Kueue's queues: for `tracks doctor` alone, and without them it says so.
QUOTAS = (
    Permission(resource="localqueues", group=KUEUE_GROUP, verbs=("get",)),
    Permission(resource="clusterqueues", group=KUEUE_GROUP, verbs=("get",), is_namespaced=False),
)


def permissions(cluster: ClusterSettings) -> tuple[Permission, ...]:
    """Return all that supervisors, the daemon and the run launcher do, by one account or several."""
    found = [
        Permission(resource="jobs", group="batch", verbs=_GANG),
        Permission(resource="jobs/status", group="batch", verbs=("get",)),  # by dagster-k8s
        Permission(resource="pods", verbs=("delete", "deletecollection", "get", "list", "watch")),
        Permission(resource="pods/log", verbs=("get",)),
        Permission(resource="services", verbs=("create", "delete", "list", "patch")),
        Permission(resource="events", verbs=("list", "watch")),
        Permission(resource="nodes", verbs=("get", "list"), is_namespaced=False),
    ]
    if cluster.taint_quarantined_nodes:
        found.append(Permission(resource="nodes", verbs=("patch",), is_namespaced=False))
    if cluster.job_kind == JOB_SET:
        found.append(Permission(resource="jobsets", group=JOB_SET_GROUP, verbs=_GANG))
    return tuple(found)


def api_groups(cluster: ClusterSettings) -> tuple[str, ...]:
    """Return the groups of the custom resources that the settings use."""
    own = QUEUE_GROUPS.get(cluster.scheduler or "")
    jobs = (JOB_SET_GROUP,) if cluster.job_kind == JOB_SET else ()
    if own is not None:
        return (*jobs, own)
    return (*jobs, KUEUE_GROUP) if queues_of(cluster) else jobs


def references(cluster: ClusterSettings) -> tuple[ObjectRef, ...]:
    """Return the objects that pods of gangs and run workers name, each once; optional ones apart."""
    spec = mapping(cluster.pod_template.get("spec"))
    found = [
        *_accounts(cluster.service_account, spec.get("serviceAccountName")),
        *_accounts(cluster.run_worker.get("service_account_name")),
        *(_secret(name) for name in cluster.image_pull_secrets),
        *(_secret(each.get("name")) for each in mappings(spec.get("imagePullSecrets"))),
        *(_secret(name) for name in _items(cluster.run_worker.get("env_secrets"))),
        *(_config_map(name) for name in _items(cluster.run_worker.get("env_config_maps"))),
        *_sources(cluster.environment_from),
        *_of_volumes(cluster.volumes),
        *_of_volumes(mappings(spec.get("volumes"))),
        *(
            ref
            for kind in ("initContainers", "containers")
            for each in mappings(spec.get(kind))
            for ref in _of_container(each)
        ),
    ]
    classes = tuple(cluster.classes.values())
    priorities = (cluster.priority_class, *(each.priority_class for each in classes))
    for name in (*priorities, worker_priority(cluster)):
        if name is not None:
            found.append(
                ObjectRef(
                    resource="priorityclasses",
                    group=SCHEDULING_GROUP,
                    name=name,
                    is_namespaced=False,
                )
            )
    found += _queues(cluster)
    return tuple(dict.fromkeys(ref for ref in found if ref.name))


def _queues(cluster: ClusterSettings) -> Iterator[ObjectRef]:
    """Yield the queues as their scheduler names them, and Kueue's priorities."""
    own = QUEUE_GROUPS.get(cluster.scheduler or "")
    for name in queues_of(cluster):
        if own is None:
            yield ObjectRef(resource="localqueues", group=KUEUE_GROUP, name=name)
        else:
            yield ObjectRef(resource="queues", group=own, name=name, is_namespaced=False)
    if own is not None:
        return
    classes = cluster.classes.values()
    for priority in (cluster.workload_priority, *(each.workload_priority for each in classes)):
        if priority is not None:
            yield ObjectRef(
                resource="workloadpriorityclasses",
                group=KUEUE_GROUP,
                name=priority,
                is_namespaced=False,
            )


def worker_priority(cluster: ClusterSettings) -> str | None:
    """Return the priority class that the settings give run workers, None for none."""
    raw = mapping(cluster.run_worker.get("run_k8s_config"))
    pod = mapping(raw.get("pod_spec_config"))
    name = pod.get("priorityClassName") or pod.get("priority_class_name")
    return name if isinstance(name, str) else None


def worker_has_memory_limit(cluster: ClusterSettings) -> bool:
    """Whether run workers have a memory limit; where the settings name no resources, ours do."""
    resources = cluster.run_worker.get("resources")
    return resources is None or "memory" in mapping(mapping(resources).get("limits"))


def _accounts(*names: Json) -> Iterator[ObjectRef]:
    for name in names:
        if isinstance(name, str):
            yield ObjectRef(resource="serviceaccounts", name=name)


def _secret(name: Json) -> ObjectRef:
    return ObjectRef(resource="secrets", name=name if isinstance(name, str) else "")


def _config_map(name: Json) -> ObjectRef:
    return ObjectRef(resource="configmaps", name=name if isinstance(name, str) else "")


def _sources(env_from: Iterable[Mapping[str, Json]]) -> Iterator[ObjectRef]:
    for each in env_from:
        yield from _needed(each.get("secretRef"), _secret)
        yield from _needed(each.get("configMapRef"), _config_map)


def _of_container(container: Mapping[str, Json]) -> Iterator[ObjectRef]:
    yield from _sources(mappings(container.get("envFrom")))
    for variable in mappings(container.get("env")):
        source = mapping(variable.get("valueFrom"))
        yield from _needed(source.get("secretKeyRef"), _secret)
        yield from _needed(source.get("configMapKeyRef"), _config_map)


def _of_volumes(volumes: Iterable[Mapping[str, Json]]) -> Iterator[ObjectRef]:
    for volume in volumes:
        yield from _needed(volume.get("secret"), _secret, key="secretName")
        yield from _needed(volume.get("configMap"), _config_map)
        claim = volume.get("persistentVolumeClaim")
        if isinstance(claim, Mapping) and isinstance(claim.get("claimName"), str):
            yield ObjectRef(resource="persistentvolumeclaims", name=claim["claimName"])
        for source in mappings(mapping(volume.get("projected")).get("sources")):
            yield from _needed(source.get("secret"), _secret)
            yield from _needed(source.get("configMap"), _config_map)


def _needed(ref: Json, make: Callable[[Json], ObjectRef], key: str = "name") -> Iterator[ObjectRef]:
    if isinstance(ref, Mapping) and ref.get("optional") is not True:
        yield make(ref.get(key))


def _items(value: Json) -> Sequence[Json]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()
