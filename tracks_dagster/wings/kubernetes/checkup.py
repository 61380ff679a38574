"""From what was seen of a cluster to what is missing there before the first run. Pure.

What this account may not read is `UNKNOWN`, never missing, and no error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tracks_dagster.attempts.findings import Finding, Health
from tracks_dagster.reasons.kube_json import mapping, mappings
from tracks_dagster.track.records import Json
from tracks_dagster.track.text.nearest import unknown
from tracks_dagster.track.text.units import counted
from tracks_dagster.wings.kubernetes.needs import (
    JOB_SET_GROUP,
    JOB_SET_VERSION,
    KUEUE_GROUP,
    QUEUE_GROUPS,
    SETTINGS_OF_PODS,
    ObjectRef,
    Permission,
    api_groups,
    permissions,
    references,
    worker_has_memory_limit,
    worker_priority,
)
from tracks_dagster.wings.kubernetes.settings import (
    CPU,
    HOSTNAME,
    KAI,
    VOLCANO,
    ClusterSettings,
    DeviceClass,
)
from tracks_dagster.wings.kubernetes.upkeep import repelling

# DisruptionTarget on pods is stable from 1.31; manifests are checked from 1.32 on, by tests.
MINOR_MIN, MINOR_KNOWN_MAX = 32, 37
NAMES_SHOWN_MAX = 5
QUOTAS_SHOWN_MAX = 8

_VERSION = re.compile(r"v?1\.(?P<minor>\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """A node. allocatable: whole units of each resource that pods can have; taints: as in its spec."""

    name: str
    labels: Mapping[str, str]
    allocatable: Mapping[str, int]
    is_ready: bool
    taints: tuple[Mapping[str, Json], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """How much of one resource a cluster queue may give out, and has given, as the API has it.

    flavor: of the nodes. used: None where it is not said.
    """

    flavor: str
    resource: str
    nominal: str
    used: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFacts:
    """A local queue of Kueue's. quotas: of its cluster queue, None where this account may not look.

    waiting: workloads of the local queue that are not admitted, None where it is not said.
    """

    name: str
    cluster_queue: str
    quotas: tuple[Quota, ...] | None = None
    waiting: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """What the API server answered. None, or a key that is missing: it could not be asked.

    account: whose permissions these are. denied: permission → the verbs that it lacks. groups: all API
    groups → the versions they serve. found: whether an object is there. nodes: all of them. priorities:
    priority class → its value, "" → that of a pod that names none. queues: those of Kueue's that the
    settings name and that are there.
    """

    version: str
    account: str | None = None
    has_namespace: bool | None = None
    denied: Mapping[Permission, tuple[str, ...]] = field(default_factory=dict)
    groups: Mapping[str, tuple[str, ...]] | None = None
    found: Mapping[ObjectRef, bool] = field(default_factory=dict)
    nodes: tuple[NodeFacts, ...] | None = None
    priorities: Mapping[str, int] | None = None
    queues: tuple[QueueFacts, ...] = ()


def check_cluster(facts: ClusterFacts, cluster: ClusterSettings) -> list[Finding]:
    """Return a finding for all that the settings need of a cluster, in the order to mend it."""
    return [
        _version(facts.version),
        _namespace(facts, cluster),
        *(_permission(need, facts, cluster) for need in permissions(cluster)),
        *(_group(group, facts) for group in api_groups(cluster)),
        *(_object(ref, facts, cluster) for ref in references(cluster)),
        *(_quota(queue) for queue in facts.queues),
        *_devices(facts, cluster),
        _node_names(facts),
        _worker_priority(facts, cluster),
        _worker_memory(cluster),
        _settings_of_pods(facts),
    ]


def check_classes(cluster: ClusterSettings, known: Sequence[str]) -> Finding | None:
    """Return whether the classes of the settings are the policy's; None where they name none."""
    if not cluster.classes:
        return None
    check = "workload classes"
    wrong = [
        unknown("workload class", name, known) for name in cluster.classes if name not in known
    ]
    if wrong:
        words = (
            f"{' '.join(wrong)} No run has one that the policy lacks: correct it, or add it there."
        )
        return Finding(check=check, health=Health.MISSING, words=words)
    words = f"{', '.join(cluster.classes)}: each is one of the policy's."
    return Finding(check=check, health=Health.OK, words=words)


def _version(version: str) -> Finding:
    match = _VERSION.match(version)
    minor = int(match["minor"]) if match else None
    check, supported = "version", f"1.{MINOR_MIN} to 1.{MINOR_KNOWN_MAX}"
    if minor is None:
        words = f"{version!r} is not a version; supported are {supported}."
        return Finding(check=check, health=Health.UNKNOWN, words=words)
    if minor < MINOR_MIN:
        words = f"{version} is too old; supported are {supported}. Upgrade the cluster."
        return Finding(check=check, health=Health.MISSING, words=words)
    if minor > MINOR_KNOWN_MAX:
        words = f"{version} is newer than what this was tested with ({supported})."
        return Finding(check=check, health=Health.UNKNOWN, words=words)
    return Finding(check=check, health=Health.OK, words=version)


def _namespace(facts: ClusterFacts, cluster: ClusterSettings) -> Finding:
    check, name = "namespace", cluster.namespace
    if facts.has_namespace is None:
        words = f"{name}: this account may not look (get namespaces)."
        return Finding(check=check, health=Health.UNKNOWN, words=words)
    if not facts.has_namespace:
        words = f"There is none of the name {name}: kubectl create namespace {name}."
        return Finding(check=check, health=Health.MISSING, words=words)
    return Finding(check=check, health=Health.OK, words=name)


def _permission(need: Permission, facts: ClusterFacts, cluster: ClusterSettings) -> Finding:
    check = f"may use {_format(need.resource, need.group)}"
    denied = facts.denied.get(need)
    if denied is None:
        words = "The API server does not say."
        return Finding(check=check, health=Health.UNKNOWN, words=words)
    if not denied:
        return Finding(check=check, health=Health.OK, words=", ".join(need.verbs))
    kind = f"Role of namespace {cluster.namespace}" if need.is_namespaced else "ClusterRole"
    verbs = ", ".join(f'"{verb}"' for verb in denied)
    words = (
        f"{facts.account or 'This account'} may not {', '.join(denied)}. Add to a {kind} that is bound "
        f'to it: {{apiGroups: ["{need.group}"], resources: ["{need.resource}"], verbs: [{verbs}]}}.'
    )
    return Finding(check=check, health=Health.MISSING, words=words)


def _group(group: str, facts: ClusterFacts) -> Finding:
    what, setting = _GROUPS[group]
    if facts.groups is None:
        words = "This account may not list the API groups."
        return Finding(check=what, health=Health.UNKNOWN, words=words)
    versions = facts.groups.get(group)
    if versions is None:
        words = f"There is no API group {group}; install {what}, or use {setting}."
        return Finding(check=what, health=Health.MISSING, words=words)
    if group == JOB_SET_GROUP and versions and JOB_SET_VERSION not in versions:
        words = f"It serves {', '.join(versions)}; {JOB_SET_VERSION} is needed, or {setting}."
        return Finding(check=what, health=Health.MISSING, words=words)
    return Finding(check=what, health=Health.OK, words=", ".join(versions) or group)


_GROUPS = {  # what has it, and the setting that does without
    JOB_SET_GROUP: ("JobSet", "job_kind: Job"),
    KUEUE_GROUP: ("Kueue", "no queue"),
    QUEUE_GROUPS[VOLCANO]: ("Volcano", "another scheduler"),
    QUEUE_GROUPS[KAI]: ("KAI", "another scheduler"),
}


def _object(ref: ObjectRef, facts: ClusterFacts, cluster: ClusterSettings) -> Finding:
    check = f"{_format(ref.resource, ref.group)} {ref.name}"
    found = facts.found.get(ref)
    if found is None:
        words = f"This account may not look (get {ref.resource}); a pod would show it."
        return Finding(check=check, health=Health.UNKNOWN, words=words)
    if not found:
        at = f" in namespace {cluster.namespace}" if ref.is_namespaced else ""
        words = f"It is not there{at}; create it, or take it out of the cluster's settings."
        return Finding(check=check, health=Health.MISSING, words=words)
    return Finding(check=check, health=Health.OK, words="It is there.")


def _quota(queue: QueueFacts) -> Finding:
    """Say what the queue may give out and has given."""
    check, where = f"quota of queue {queue.name}", f"ClusterQueue {queue.cluster_queue}"
    if queue.quotas is None:
        words = (
            f"{where}: this account may not look (get clusterqueues); `kubectl describe` shows it."
        )
        return Finding(check=check, health=Health.UNKNOWN, words=words)
    if not queue.quotas:
        words = f"{where} is not there, or gives out nothing: no gang is ever admitted."
        return Finding(check=check, health=Health.MISSING, words=words)
    parts = [
        f"{each.resource} {each.used or '?'} of {each.nominal} ({each.flavor})"
        for each in queue.quotas[:QUOTAS_SHOWN_MAX]
    ]
    more = len(queue.quotas) - QUOTAS_SHOWN_MAX
    left = f" and {more} more" if more > 0 else ""
    waiting = (
        "" if queue.waiting is None else f"; {counted(queue.waiting, 'workload')} not admitted"
    )
    words = f"{where}: {', '.join(parts)}{left} in use{waiting}."
    return Finding(check=check, health=Health.OK, words=words)


def _devices(facts: ClusterFacts, cluster: ClusterSettings) -> Iterator[Finding]:
    classes = {CPU: DeviceClass(resource=None), **cluster.device_classes}
    for name, device in classes.items():
        check = f"device class {name}"
        if facts.nodes is None:
            words = "This account may not list the nodes."
            yield Finding(check=check, health=Health.UNKNOWN, words=words)
            continue
        wanted = {**cluster.node_selector, **device.node_selector}
        labelled = [n for n in facts.nodes if wanted.items() <= n.labels.items()]
        fitting = [n for n in labelled if n.is_ready and _units(n, device) > 0]
        free = [n for n in fitting if not _repelling(n, cluster)]
        if free:
            yield Finding(check=check, health=Health.OK, words=_have(free, device))
        elif fitting:
            words = _tainted(fitting, cluster)
            yield Finding(check=check, health=Health.UNKNOWN, words=words)
        else:
            words = _lack(facts.nodes, labelled, device, wanted)
            yield Finding(check=check, health=Health.MISSING, words=words)


def _units(node: NodeFacts, device: DeviceClass) -> int:
    return 1 if device.resource is None else node.allocatable.get(device.resource, 0)


def _repelling(node: NodeFacts, cluster: ClusterSettings) -> list[str]:
    of_template = mappings(mapping(cluster.pod_template.get("spec")).get("tolerations"))
    return repelling(node.taints, [*cluster.tolerations, *of_template])


def _tainted(nodes: list[NodeFacts], cluster: ClusterSettings) -> str:
    """Some clusters tolerate a device's own taint by themselves, and a run may bring tolerations."""
    taints = sorted({taint for node in nodes for taint in _repelling(node, cluster)})
    return (
        f"Ready, but pods are kept off by taints that the settings do not tolerate: {_names(nodes)} "
        f"({', '.join(taints[:NAMES_SHOWN_MAX])}). Name them under tolerations, or give each run "
        "--toleration; fine where the cluster adds tolerations for devices by itself."
    )


def _have(nodes: list[NodeFacts], device: DeviceClass) -> str:
    count = "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"
    if device.resource is None:
        return f"{count} ready."
    most = max(_units(node, device) for node in nodes)
    return f"{count} ready, up to {most} {device.resource} each."


def _lack(
    nodes: tuple[NodeFacts, ...],
    labelled: list[NodeFacts],
    device: DeviceClass,
    wanted: Mapping[str, str],
) -> str:
    """Return what is nearest to a node of that class, and why it is not one."""
    labels = ", ".join(f"{key}={value}" for key, value in sorted(wanted.items()))
    label_words = f" with {labels}" if labels else ""
    having = [node for node in labelled if _units(node, device) > 0]
    if having:
        return f"No such node is ready or takes pods: {_names(having)}."
    others = [node for node in nodes if device.resource and _units(node, device) > 0]
    if others:
        return (
            f"No node{label_words} has {device.resource}; these have, with other labels: "
            f"{_names(others)}."
        )
    what = f"has {device.resource}" if device.resource is not None else "is there"
    hint = "; is the device plugin installed?" if device.resource is not None else "."
    return f"No node{label_words} {what} now (a pool that starts at zero nodes has none yet){hint}"


def _node_names(facts: ClusterFacts) -> Finding:
    """Check that a gang can be kept off a node: by a label, which few clusters rename."""
    check = "nodes can be left out"
    if facts.nodes is None:
        words = "This account may not list the nodes."
        return Finding(check=check, health=Health.UNKNOWN, words=words)
    others = [node for node in facts.nodes if node.labels.get(HOSTNAME) != node.name]
    if others:
        words = (
            f"{_names(others)}: the label {HOSTNAME} is not the node's name, so no quarantine and no "
            "exclusion keeps a gang off there; `kubectl cordon` does."
        )
        return Finding(check=check, health=Health.UNKNOWN, words=words)
    return Finding(check=check, health=Health.OK, words=f"{HOSTNAME} is each node's name.")


def _worker_priority(facts: ClusterFacts, cluster: ClusterSettings) -> Finding:
    """Say whether a gang that makes room for itself would take its own supervisors' places first."""
    check = "priority of run workers"
    if facts.priorities is None:
        words = "This account may not list the priority classes."
        return Finding(check=check, health=Health.UNKNOWN, words=words)
    workers = worker_priority(cluster)
    named = [cluster.priority_class, *(each.priority_class for each in cluster.classes.values())]
    values = {name: facts.priorities.get(name or "") for name in (workers, *named)}
    if None in values.values():
        words = "A named class is not there, so the order of the classes is unknown."
        return Finding(check=check, health=Health.UNKNOWN, words=words)
    gangs = max(named, key=lambda name: values[name] or 0)
    own, theirs = values[workers] or 0, values[gangs] or 0
    classes = f"{_class_of(workers)} of {own}, gangs {_class_of(gangs)} of {theirs}"
    if own >= theirs:
        return Finding(check=check, health=Health.OK, words=f"They have {classes}.")
    words = (
        f"They have {classes}: any gang evicts supervisors first. Name a class above it: run_worker: "
        "{run_k8s_config: {pod_spec_config: {priorityClassName: tracks-supervisor}}}."
    )
    # Who starts no run worker on the cluster lacks nothing.
    health = Health.MISSING if cluster.run_worker else Health.UNKNOWN
    return Finding(check=check, health=health, words=words)


def _class_of(name: str | None) -> str:
    return f"priority class {name}" if name else "no priority class, the default"


def _worker_memory(cluster: ClusterSettings) -> Finding:
    check = "memory of run workers"
    if worker_has_memory_limit(cluster):
        return Finding(check=check, health=Health.OK, words="It has a limit.")
    words = (
        "run_worker names resources without limits.memory: a run worker that grows takes the node's "
        "memory from its neighbours. Add limits: {memory: 4Gi}."
    )
    return Finding(check=check, health=Health.UNKNOWN, words=words)


def _settings_of_pods(facts: ClusterFacts) -> Finding:
    """Say whether `tracks up --kubernetes` can be used; nothing else needs it."""
    check, denied = "may use configmaps", facts.denied.get(SETTINGS_OF_PODS)
    if denied == ():
        words = ", ".join(SETTINGS_OF_PODS.verbs)
        return Finding(check=check, health=Health.OK, words=words)
    lacks = f"may not {', '.join(denied)}" if denied else "may be denied it"
    words = (
        f"{facts.account or 'This account'} {lacks}; only `tracks up --kubernetes` needs it, to put "
        "the settings of run workers there."
    )
    return Finding(check=check, health=Health.UNKNOWN, words=words)


def _names(nodes: list[NodeFacts]) -> str:
    names = [node.name for node in nodes]
    more = f" and {len(names) - NAMES_SHOWN_MAX} more" if len(names) > NAMES_SHOWN_MAX else ""
    return ", ".join(names[:NAMES_SHOWN_MAX]) + more


def _format(resource: str, group: str) -> str:
    return f"{resource}.{group}" if group else resource
