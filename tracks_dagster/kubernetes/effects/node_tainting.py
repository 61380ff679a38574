"""Puts the taint of a quarantine on nodes and takes it off: implements `node_taints.NodeTaints`.

One list of the nodes a call, and a patch for each node that changes. A patch names the version that
was read: where somebody else changed the node meanwhile nothing is done, and the next call sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from http import HTTPStatus

from tracks_dagster.kubernetes.effects.api.kube_requests import KubeRequests, Object
from tracks_dagster.kubernetes.effects.homes import Home
from tracks_dagster.kubernetes.settings.node_taints import taints_instead
from tracks_dagster.reasons.kube_json import mapping, mappings, text
from tracks_dagster.track.records import sha256_hex

CHANGES_MAX = 100  # of one call; the next one goes on
OWNER_CHARACTERS = 16  # a taint's value has at most 63


class NodeTainting:
    """Asks one cluster, for one home."""

    def __init__(self, requests: KubeRequests, home: Home) -> None:
        self._requests, self._home = requests, home

    def taint(self, nodes: AbstractSet[str]) -> Sequence[str]:
        """Let these nodes, and no others, have this home's taint."""
        owner = sha256_hex(self._home.id.encode())[:OWNER_CHARACTERS]
        told: list[str] = []
        for node in self._requests.list_all("/api/v1/nodes", (), doing="list the nodes"):
            name = text(mapping(node.get("metadata")).get("name"))
            taints = mappings(mapping(node.get("spec")).get("taints"))
            is_held = name in nodes
            wanted = taints_instead(taints, owner=owner, is_held=is_held)
            if wanted is None or len(told) >= CHANGES_MAX:
                continue
            if self._put(node, name, [dict(taint) for taint in wanted]):
                done = "has the taint of its quarantine" if is_held else "has it no longer"
                told.append(f"node {name} {done}")
        return told

    def _put(self, node: Object, name: str, taints: list[Object]) -> bool:
        version = mapping(node.get("metadata")).get("resourceVersion")
        found = self._requests.ask(
            "PATCH",
            f"/api/v1/nodes/{name}",
            doing=f"change the taints of node {name}",
            body={"metadata": {"resourceVersion": version}, "spec": {"taints": taints or None}},
            none_at={HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND},
        )
        return found is not None
