"""Reads what `tracks doctor` wants to know of a cluster: nothing is written, no value of a Secret read.

What this account may not look at is left out of the facts; what they mean is
`kubernetes.checkup`'s.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from kubernetes.client import ApiClient
from kubernetes.client.exceptions import ApiException

from tracks_dagster.reasons.kube_json import mapping, mappings, text
from tracks_dagster.track.records import Json
from tracks_dagster.wings.kubernetes.checkup import ClusterFacts, NodeFacts, QueueFacts, Quota
from tracks_dagster.wings.kubernetes.effects.client import CLIENT_ERRORS, as_object, explain
from tracks_dagster.wings.kubernetes.needs import (
    KUEUE_GROUP,
    SETTINGS_OF_PODS,
    ObjectRef,
    Permission,
    api_groups,
    permissions,
    references,
)
from tracks_dagster.wings.kubernetes.settings import ClusterSettings, queues_of

VERSION = "/version"
PAGE_OBJECTS = 500
PAGES_MAX = 20  # of nodes: 10 000, twice as many as a cluster may have

# A Secret in this form has its name and labels, and none of its values.
_METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_PLAIN = "application/json"
_MAY_NOT, _NOT_THERE = 403, 404
_NOTHING: Json = {}
_WHOLE = re.compile(r"(?P<number>\d+)(?P<unit>[kMG]?)")
_UNITS = {"": 1, "k": 1000, "M": 1000**2, "G": 1000**3}


def read_facts(client: ApiClient, cluster: ClusterSettings) -> ClusterFacts:
    """Return what there is; raises GangError when the API server cannot be asked at all."""
    reader = _Reader(client, cluster)
    version = reader.get(VERSION, "ask for the version")
    groups = reader.groups()
    wanted = references(cluster)
    seen = {ref: reader.has_object(ref, groups or {}) for ref in wanted}
    needs = (*permissions(cluster), SETTINGS_OF_PODS)
    asked = {need: reader.denied(need) for need in needs}
    return ClusterFacts(
        version=text(mapping(version).get("gitVersion")),
        account=reader.account(),
        has_namespace=reader.has(f"/api/v1/namespaces/{cluster.namespace}"),
        denied={need: verbs for need, verbs in asked.items() if verbs is not None},
        groups=groups,
        found={ref: found for ref, found in seen.items() if found is not None},
        nodes=reader.nodes(),
        priorities=reader.priorities(),
        queues=tuple(reader.queues((groups or {}).get(KUEUE_GROUP) or ())),
    )


class _Reader:
    """Asks one API server; None is the answer to what this account may not ask."""

    def __init__(self, client: ApiClient, cluster: ClusterSettings) -> None:
        self._client, self._cluster = client, cluster

    def get(self, path: str, doing: str, query: Mapping[str, str] | None = None) -> Json:
        """Return the JSON at `path`; None where that is forbidden, an empty one where none is there."""
        return self._ask("GET", path, doing, query=query)

    def has(self, path: str) -> bool | None:
        """Whether there is an object at `path`; only its metadata is read."""
        doing = f"look for {path}"
        found = self._ask("GET", path, doing, accept=_METADATA_ONLY)
        return None if found is None else found != _NOTHING

    def has_object(self, ref: ObjectRef, groups: Mapping[str, tuple[str, ...]]) -> bool | None:
        """Whether it is there; one of a group that is not there is not."""
        root = "/api/v1"
        if ref.group:
            versions = groups.get(ref.group) or ()
            if not versions:
                return False if groups else None
            root = f"/apis/{ref.group}/{versions[0]}"
        place = f"/namespaces/{self._cluster.namespace}" if ref.is_namespaced else ""
        return self.has(f"{root}{place}/{ref.resource}/{ref.name}")

    def groups(self) -> dict[str, tuple[str, ...]] | None:
        """Return API group → its versions, the preferred one first."""
        found = self.get("/apis", "list the API groups")
        return None if found is None else dict(map(_group, mappings(found.get("groups"))))

    def account(self) -> str | None:
        """Return this account's name, None where the API server does not give it."""
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        found = self._ask("POST", path, "ask who this is", body=body)
        status = mapping(mapping(found).get("status"))
        return text(mapping(status.get("userInfo")).get("username")) or None

    def denied(self, need: Permission) -> tuple[str, ...] | None:
        """Return which verbs of a permission this account lacks."""
        answers = {verb: self._may(verb, need) for verb in need.verbs}
        if None in answers.values():
            return None
        return tuple(verb for verb, allowed in answers.items() if not allowed)

    def nodes(self) -> tuple[NodeFacts, ...] | None:
        """Return all nodes."""
        found: list[NodeFacts] = []
        query = {"limit": str(PAGE_OBJECTS)}
        for _ in range(PAGES_MAX):
            page = self.get("/api/v1/nodes", "list the nodes", query)
            if page is None:
                return None
            found += map(_node, mappings(page.get("items")))
            query["continue"] = text(mapping(page.get("metadata")).get("continue"))
            if not query["continue"]:
                break
        return tuple(found)

    def priorities(self) -> dict[str, int] | None:
        """Return priority class → its value; "" is for pods that name none."""
        query = {"limit": str(PAGE_OBJECTS)}  # few have more than ten
        path = "/apis/scheduling.k8s.io/v1/priorityclasses"
        page = self.get(path, "list the priority classes", query)
        if page is None:
            return None
        found = {"": 0}
        for each in mappings(mapping(page).get("items")):
            value = each.get("value")
            if isinstance(value, int):
                found[text(mapping(each.get("metadata")).get("name"))] = value
                if each.get("globalDefault") is True:
                    found[""] = value
        return found

    def queues(self, versions: Sequence[str]) -> Iterator[QueueFacts]:
        """Yield Kueue's queues that the settings name, with their quotas; versions: that it serves."""
        if not versions or KUEUE_GROUP not in api_groups(self._cluster):
            return
        root = f"/apis/{KUEUE_GROUP}/{versions[0]}"
        for name in queues_of(self._cluster):
            doing = f"look at the queue {name}"
            path = f"{root}/namespaces/{self._cluster.namespace}/localqueues/{name}"
            found = self.get(path, doing)
            if not found:
                continue  # it is not there, or may not be looked at: `references` has said so
            above = text(mapping(found.get("spec")).get("clusterQueue"))
            waiting = mapping(found.get("status")).get("pendingWorkloads")
            yield QueueFacts(
                name=name,
                cluster_queue=above,
                quotas=self._quotas(f"{root}/clusterqueues/{above}", doing),
                waiting=waiting if isinstance(waiting, int) else None,
            )

    def _quotas(self, path: str, doing: str) -> tuple[Quota, ...] | None:
        found = self.get(path, doing)
        return None if found is None else tuple(_quotas(found))

    def _may(self, verb: str, need: Permission) -> bool | None:
        resource, _, part = need.resource.partition("/")
        attributes = {"verb": verb, "group": need.group, "resource": resource, "subresource": part}
        if need.is_namespaced:
            attributes["namespace"] = self._cluster.namespace
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        found = self._ask("POST", path, f"ask whether it may {verb} {resource}", body=body)
        return None if found is None else mapping(found.get("status")).get("allowed") is True

    def _ask(
        self,
        method: str,
        path: str,
        doing: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Json] | None = None,
        accept: str = _PLAIN,
    ) -> Json:
        """Return the answer's JSON, None where it is forbidden and _NOTHING where nothing is there.

        Raises GangError.
        """
        try:
            answer = self._client.call_api(
                path,
                method,
                query_params=list((query or {}).items()),
                header_params={"Accept": accept, "Content-Type": _PLAIN},
                body=body,
                response_types_map={200: "object", 201: "object"},
                auth_settings=["BearerToken"],
                _return_http_data_only=True,
            )
            # /version is the one answer that has no kind.
            return mapping(answer) if path == VERSION else as_object(answer)
        except CLIENT_ERRORS as error:
            status = error.status if isinstance(error, ApiException) else None
            if status == _MAY_NOT:
                return None
            if status == _NOT_THERE:
                return _NOTHING
            raise explain(error, doing, self._cluster) from error


def _group(found: Mapping[str, Json]) -> tuple[str, tuple[str, ...]]:
    versions = [text(each.get("version")) for each in mappings(found.get("versions"))]
    preferred = text(mapping(found.get("preferredVersion")).get("version"))
    return text(found.get("name")), tuple(sorted(versions, key=lambda each: each != preferred))


def _node(found: Mapping[str, Json]) -> NodeFacts:
    meta, spec = mapping(found.get("metadata")), mapping(found.get("spec"))
    status = mapping(found.get("status"))
    ready = [each for each in mappings(status.get("conditions")) if each.get("type") == "Ready"]
    return NodeFacts(
        name=text(meta.get("name")),
        labels={key: text(value) for key, value in mapping(meta.get("labels")).items()},
        allocatable={
            key: _whole(text(value)) for key, value in mapping(status.get("allocatable")).items()
        },
        is_ready=any(each.get("status") == "True" for each in ready)
        and spec.get("unschedulable") is not True,
        taints=tuple(mappings(spec.get("taints"))),
    )


def _quotas(found: Mapping[str, Json]) -> Iterator[Quota]:
    """Yield the quotas of a ClusterQueue, each with what is used of it."""
    spec, status = mapping(found.get("spec")), mapping(found.get("status"))
    used = {
        (text(flavor.get("name")), text(each.get("name"))): text(each.get("total"))
        for flavor in mappings(status.get("flavorsUsage"))
        for each in mappings(flavor.get("resources"))
    }
    for group in mappings(spec.get("resourceGroups")):
        for flavor in mappings(group.get("flavors")):
            for each in mappings(flavor.get("resources")):
                name = (text(flavor.get("name")), text(each.get("name")))
                yield Quota(
                    flavor=name[0],
                    resource=name[1],
                    nominal=str(each.get("nominalQuota")),
                    used=used.get(name) or None,
                )


def _whole(quantity: str) -> int:
    """Return a count of devices; 0 for quantities in other units, such as memory, which none is."""
    match = _WHOLE.fullmatch(quantity)
    return int(match["number"]) * _UNITS[match["unit"]] if match else 0
