"""Where the pods of a gang may run: away from excluded nodes, and together in one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracks_dagster.kubernetes.objects.merging import merged
from tracks_dagster.kubernetes.settings.cluster import HOSTNAME
from tracks_dagster.track.records import Json

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


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

    Any one term that matches is enough for the scheduler, so each of them has to say it; a term
    without a word matches no node, and is left so. The label, not the field metadata.name: Karpenter
    brings no node for a pod with matchFields. A kubelet sets it to its host's name, which is the
    node's name everywhere but where a cloud's controller was told to rename nodes.
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
