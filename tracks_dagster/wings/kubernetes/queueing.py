"""How a gang asks a cluster's queue and scheduler: by labels and annotations of its Job and pods. Pure.

Nothing is scheduled here. Kueue holds a suspended Job back until it admits it. Volcano and KAI, named
as the pods' scheduler, have queues of their own, and place pod by pod unless they read how many pods a
gang has. The names are those of https://kueue.sigs.k8s.io/docs/reference/labels-and-annotations, of
KAI's docs/batch and docs/topology (0.14), of Volcano's guide to a PodGroup's smallest member (1.13).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tracks_dagster.wings.kubernetes.compute_demand import Demand
from tracks_dagster.wings.kubernetes.settings import AFFINITY, KAI, VOLCANO
from tracks_dagster.wings.kubernetes.template_rules import QUEUE_LABEL

PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"  # a WorkloadPriorityClass: the order of admission
CLUSTER_QUEUE_LABEL = "kueue.x-k8s.io/cluster-queue-name"  # of pods, by Kueue 0.17 and newer
_KUEUE_TOPOLOGY = "kueue.x-k8s.io/podset-{rule}-topology"  # of pods
_KAI_QUEUE, _KAI_MEMBERS = "kai.scheduler/queue", "kai.scheduler/batch-min-member"
_KAI_TOPOLOGY, _KAI_LEVEL = "kai.scheduler/topology", "kai.scheduler/topology-{rule}-placement"
_VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"  # of pods
_VOLCANO_MEMBERS = "scheduling.volcano.sh/group-min-member"  # of the Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What a Job (or JobSet) carries, and what its pods carry, for queue and scheduler."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    pod_labels: Mapping[str, str] = field(default_factory=dict)
    pod_annotations: Mapping[str, str] = field(default_factory=dict)


def marks_of(wanted: Demand) -> Marks:
    """Return the marks of a gang, as the scheduler that queues it reads them."""
    if wanted.scheduler == KAI:
        return _kai(wanted)
    if wanted.scheduler == VOLCANO:
        queue = {} if wanted.queue is None else {_VOLCANO_QUEUE: wanted.queue}
        members = {_VOLCANO_MEMBERS: str(wanted.nodes)}
        return Marks(annotations=members, pod_annotations=queue)
    return _kueue(wanted) if wanted.queue is not None else Marks()


def is_queued_by_kueue(wanted: Demand) -> bool:
    """Whether the Job is made suspended, for Kueue to lift that."""
    return wanted.queue is not None and wanted.scheduler not in (KAI, VOLCANO)


def asked_of_cluster(wanted: Demand, workload_class: str | None) -> dict[str, str]:
    """Return what the manifest asks of queue and scheduler, for the record; nothing: {}."""
    topology = None
    if wanted.topology_key is not None:
        topology = f"{wanted.topology_key} ({wanted.topology_rule})"
    found = {
        "queue": wanted.queue,
        "workload_priority": wanted.workload_priority,
        "priority_class": wanted.priority_class,
        "scheduler": wanted.scheduler,
        "topology": topology,
    }
    asked = {name: value for name, value in found.items() if value is not None}
    return {"workload_class": workload_class, **asked} if asked and workload_class else asked


def _kueue(wanted: Demand) -> Marks:
    labels = {QUEUE_LABEL: wanted.queue or ""}
    if wanted.workload_priority is not None:
        labels[PRIORITY_LABEL] = wanted.workload_priority
    place = {}
    if wanted.topology_key is not None and wanted.topology_rule != AFFINITY:
        place = {_KUEUE_TOPOLOGY.format(rule=wanted.topology_rule): wanted.topology_key}
    return Marks(labels=labels, pod_annotations=place)


def _kai(wanted: Demand) -> Marks:
    queue = {} if wanted.queue is None else {_KAI_QUEUE: wanted.queue}
    annotations = {_KAI_MEMBERS: str(wanted.nodes)}
    if wanted.topology_key is not None and wanted.topology_rule != AFFINITY:
        annotations[_KAI_TOPOLOGY] = wanted.topology or ""
        annotations[_KAI_LEVEL.format(rule=wanted.topology_rule)] = wanted.topology_key
    return Marks(labels=queue, annotations=annotations, pod_labels=queue)
