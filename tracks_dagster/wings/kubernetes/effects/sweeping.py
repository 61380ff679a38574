"""Lists and deletes our objects in a namespace, and sets our taints on nodes.

Implements `orphans.StandingGangs`: two lists a call; a deletion is two requests. What carries our label
but no attempt that can be read, or another name than this attempt's, was not made by us and is left
alone; so is what another home made. And `upkeep.NodeTaints`: one list of the nodes a call, and a patch
for each node that changes. A patch names the version that was read: where somebody else changed the
node meanwhile nothing is done, and the next call sees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from http import HTTPStatus

from tracks_dagster.attempts.orphans import SERVICE, StandingGang
from tracks_dagster.reasons.kube_json import mapping, mappings, text, time_text
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import AttemptRef, parse_attempt_key
from tracks_dagster.track.records import parse_time, sha256_hex
from tracks_dagster.wings.kubernetes.effects.gang_api import GangApi, attempt_of, gang_name, uid_of
from tracks_dagster.wings.kubernetes.effects.homes import Home
from tracks_dagster.wings.kubernetes.effects.kube_requests import KubeRequests, Object
from tracks_dagster.wings.kubernetes.job_names import job_name
from tracks_dagster.wings.kubernetes.upkeep import taints_instead

CHANGES_MAX = 100  # of one call; the next one continues
OWNER_CHARACTERS = 16  # a taint's value has at most 63


class Sweeping:
    """Asks one namespace."""

    def __init__(self, api: GangApi) -> None:
        self._api = api

    def standing(self) -> Sequence[StandingGang]:
        """Return the Jobs (one of a JobSet as the JobSet), then the Services."""
        found = {each.kind + each.name: each for each in self._listed()}
        return list(found.values())

    def sweep(self, gang: StandingGang) -> None:
        """Delete a Job and its pods with their grace; its Service, which it owns, follows. What
        was made again since it was listed stays."""
        doing = f"sweep {gang.key}"
        if gang.kind == SERVICE:
            self._api.delete_service(gang.name, uid=gang.uid, doing=doing)
        else:
            self._api.delete_job(gang.name, gang.kind, uid=gang.uid, doing=doing)

    def _listed(self) -> Iterator[StandingGang]:
        for job in self._api.jobs():
            yield from _read(job, *gang_name(job), self._api.home.address_in(job))
        for service in self._api.services():
            name = text(mapping(service.get("metadata")).get("name"))
            yield from _read(service, SERVICE, name, uid_of(service))


def _read(
    found: Object, kind: str, name: str, uid: str, store_url: str = ""
) -> Iterator[StandingGang]:
    """Yield the object, if it says whose it is and when it was made, and is called as it should."""
    made_at = _made_at(found)
    try:
        ref = AttemptRef(*parse_attempt_key(attempt_of(found)))
    except InvalidInput:
        return
    if made_at is not None and name == job_name(ref):
        yield StandingGang(
            run_id=ref.run_id,
            attempt_id=ref.attempt_id,
            kind=kind,
            name=name,
            uid=uid,
            made_at=made_at,
            store_url=store_url,
        )


def _made_at(found: Object) -> datetime | None:
    made_at = time_text(mapping(found.get("metadata")).get("creationTimestamp"))
    return None if made_at is None else parse_time(made_at)


class NodeTainting:
    """Asks one cluster, for one home."""

    def __init__(self, requests: KubeRequests, home: Home) -> None:
        self._requests, self._home = requests, home

    def taint(self, nodes: AbstractSet[str]) -> Sequence[str]:
        """Let these nodes, and no others, have this home's taint."""
        owner = sha256_hex(self._home.id.encode())[:OWNER_CHARACTERS]
        changed: list[str] = []
        for node in self._requests.list_all("/api/v1/nodes", (), doing="list the nodes"):
            name = text(mapping(node.get("metadata")).get("name"))
            taints = mappings(mapping(node.get("spec")).get("taints"))
            is_quarantined = name in nodes
            wanted = taints_instead(taints, owner=owner, is_quarantined=is_quarantined)
            if wanted is None or len(changed) >= CHANGES_MAX:
                continue
            if self._put(node, name, [dict(taint) for taint in wanted]):
                done = "has the taint of its quarantine" if is_quarantined else "has it no longer"
                changed.append(f"node {name} {done}")
        return changed

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
