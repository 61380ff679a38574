"""What a gang asks of the cluster's nodes: how many pods, which devices, how much memory.

The request overrides the settings. The cluster is not asked: whether a node has it is the
scheduler's decision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tracks_dagster.track.bodies import ComputeRequest
from tracks_dagster.track.records import Json
from tracks_dagster.track.text.nearest import unknown
from tracks_dagster.wings.kubernetes.job_names import NODES_MAX
from tracks_dagster.wings.kubernetes.merging import merged
from tracks_dagster.wings.kubernetes.settings import (
    AFFINITY,
    CPU,
    HOSTNAME,
    KAI,
    VOLCANO,
    ClassSettings,
    ClusterSettings,
    DeviceClass,
)

CPUS = "cpu"  # the resource
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The request beside the settings. nodes: how many pods; queue, …: None for none, else as of
    `ClusterSettings`.

    requests: what each pod is given; limits: what it is limited to.
    """

    nodes: int
    ranks_per_node: int
    device: DeviceClass
    requests: dict[str, str]
    limits: dict[str, str]
    node_selector: dict[str, str]
    priority_class: str | None
    topology_key: str | None
    queue: str | None
    workload_priority: str | None
    scheduler: str | None
    topology_rule: str
    topology: str | None


def demand(
    compute: ComputeRequest,
    cluster: ClusterSettings,
    problems: list[str],
    *,
    workload_class: str | None = None,
) -> Demand:
    """Return what to ask for; adds to `problems` what cannot be asked for.

    The request counts before its workload class, the class before the settings for all. An empty word
    ("") switches off what comes after it.
    """
    problems += _impossible(compute)
    named = cluster.classes.get(workload_class or "", ClassSettings())
    device = _device(compute.device_class, cluster, problems)
    requests = _requests(compute, device, cluster.shared_memory_bytes)
    found = Demand(
        nodes=max(1, compute.ranks // max(1, compute.ranks_per_node)),
        ranks_per_node=compute.ranks_per_node,
        device=device,
        requests=requests,
        # CPU is a share and no limit: a quota of the kernel's would stop a rank that imports or loads
        # with more threads than it computes with, though the node has cores to spare.
        limits={name: value for name, value in requests.items() if name != CPUS},
        node_selector={**cluster.node_selector, **device.node_selector, **compute.node_selector},
        priority_class=_first(compute.priority_class, named.priority_class, cluster.priority_class),
        topology_key=_first(compute.topology_key, named.topology_key, cluster.topology_key),
        queue=_first(compute.queue, named.queue, cluster.queue),
        workload_priority=_first(named.workload_priority, cluster.workload_priority),
        scheduler=cluster.scheduler,
        topology_rule=named.topology_rule or cluster.topology_rule,
        topology=cluster.topology,
    )
    problems += _unreadable_topology(found)
    return found


def threads(compute: ComputeRequest) -> int | None:
    """Return how many threads each rank computes with; None where no CPUs were asked for."""
    if compute.cpus is None or not math.isfinite(compute.cpus):
        return None
    return max(1, int(compute.cpus // max(1, compute.ranks_per_node)))


def _impossible(compute: ComputeRequest) -> list[str]:
    """Return what no cluster can give."""
    found = []
    per_node = compute.ranks_per_node
    if compute.ranks < 1 or per_node < 1:
        found.append(
            f"ranks = {compute.ranks} and ranks_per_node = {per_node}: both are 1 or more."
        )
    elif compute.ranks % per_node:
        fitting = [n for n in range(1, per_node) if compute.ranks % n == 0]
        found.append(
            f"ranks_per_node = {per_node} does not divide ranks = {compute.ranks}; every pod has "
            f"the same number: use {fitting[-1]}, for example."
        )
    elif compute.ranks // per_node > NODES_MAX:
        found.append(
            f"ranks = {compute.ranks} on {per_node} a pod make {compute.ranks // per_node} pods; "
            f"an Indexed Job has at most {NODES_MAX}: raise ranks_per_node."
        )
    cpus = compute.cpus
    if cpus is not None and not (math.isfinite(cpus) and cpus >= 0.001):
        found.append(f"cpus = {cpus:g} of each pod: use a number from 0.001 on, 8 for example.")
    if compute.memory_bytes is not None and compute.memory_bytes < 1:
        found.append(f"memory_bytes = {compute.memory_bytes} of each pod: use 1 or more.")
    return found


def _device(name: str, cluster: ClusterSettings, problems: list[str]) -> DeviceClass:
    classes = {CPU: DeviceClass(resource=None), **cluster.device_classes}
    if name not in classes:
        words = unknown("device class", name, sorted(classes))
        problems.append(f"{words} Others are declared under device_classes in kubernetes.yaml.")
    return classes.get(name, classes[CPU])


def _requests(
    compute: ComputeRequest, device: DeviceClass, shared_memory_bytes: int
) -> dict[str, str]:
    """Return what each pod is given.

    /dev/shm is memory of the container's cgroup: it comes on top, or a loader's tensors there would
    end a rank that keeps to what was asked for.
    """
    found = {}
    if compute.cpus is not None and math.isfinite(compute.cpus):
        milli = math.ceil(compute.cpus * 1000)
        found[CPUS] = f"{milli}m" if milli % 1000 else str(milli // 1000)
    if compute.memory_bytes is not None:
        found["memory"] = str(compute.memory_bytes + shared_memory_bytes)
    if device.resource is not None:
        found[device.resource] = str(compute.ranks_per_node)
    return found


def _first(*words: str | None) -> str | None:
    """Return the first that says something; None where that is an empty word."""
    return next((word for word in words if word is not None), None) or None


def _unreadable_topology(wanted: Demand) -> list[str]:
    """Return why nobody would read the topology's annotations."""
    if wanted.topology_key is None or wanted.topology_rule == AFFINITY:
        return []
    asked = f"topology_rule = {wanted.topology_rule} for {wanted.topology_key}:"
    use = f"use topology_rule: {AFFINITY}"
    if wanted.scheduler == VOLCANO:
        return [f"{asked} Volcano reads no such annotation of a Job; {use}."]
    if wanted.scheduler == KAI:
        if wanted.topology is not None:
            return []
        return [f"{asked} KAI needs the name of its Topology; set topology: NAME, or {use}."]
    if wanted.queue is None:
        return [f"{asked} only a queue reads it, and there is none; name a queue, or {use}."]
    return []


def affinity(
    below: Mapping[str, Json],
    *,
    excluded_nodes: Sequence[str],
    topology_key: str | None,
    labels: Mapping[str, str],
) -> Json:
    """Return the affinity of a gang's pods, added to `below`, which stays in force.

    labels: of exactly this gang's pods.
    """
    found = merged({}, below)
    if excluded_nodes:
        nodes = found.setdefault("nodeAffinity", {})
        nodes[REQUIRED] = _without(nodes.get(REQUIRED) or {}, excluded_nodes)
    if topology_key is not None:
        pods = found.setdefault("podAffinity", {})
        pods[REQUIRED] = [*(pods.get(REQUIRED) or ()), _together(topology_key, labels)]
    return found


def _without(selector: Mapping[str, Json], nodes: Sequence[str]) -> Json:
    """Return the node selector with the nodes taken out of every one of its terms.

    Any one term that matches is enough for the scheduler, so each of them needs it; a term
    without a word matches no node, and is left so. The label, not the field metadata.name: Karpenter
    brings no node for a pod with matchFields. A kubelet sets it to its host's name, which is the
    node's name everywhere but where a cloud's controller renames nodes.
    """
    out = {"key": HOSTNAME, "operator": "NotIn", "values": sorted(set(nodes))}
    terms = [
        {**term, "matchExpressions": [*(term.get("matchExpressions") or ()), out]} if term else term
        for term in selector.get("nodeSelectorTerms") or ()
    ]
    return {"nodeSelectorTerms": terms or [{"matchExpressions": [out]}]}


def _together(topology_key: str, labels: Mapping[str, str]) -> Json:
    """Return the term that brings all pods of a gang to nodes with one value of that label.

    The first pod has nobody to be near. The scheduler lets a pod pass that matches its own term
    while no other pod does, on any node that has the label; the others then follow it. Whether the
    place has room for all of them is not looked at: that is a queue's work (Kueue).
    """
    return {"labelSelector": {"matchLabels": dict(labels)}, "topologyKey": topology_key}
