"""What the double says of itself: version, groups, resources, and who may do what."""

from __future__ import annotations

from collections.abc import Set

from tests.wings.kubernetes.double.answers import Json
from tests.wings.kubernetes.double.faults import Desk
from tests.wings.kubernetes.double.kinds import JOBSET, KUEUE, REVIEWS, Kinds

VERSION = {
    "major": "1",
    "minor": "34",
    "gitVersion": "v1.34.9",
    **dict.fromkeys(("gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler"), "double"),
    "platform": "linux/amd64",
}
VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_VERSIONS = {kind[1].partition("/")[0]: kind[1] for kind in (KUEUE | JOBSET).values()}
_HEALTH = ("/readyz", "/livez", "/healthz")
_NO_GROUP_VERSIONS = {"authorization.k8s.io/v1", "authentication.k8s.io/v1"}


def body_at(path: str, kinds: Kinds, groups: Set[str]) -> Json | str | None:
    """Return what stands at a path that names no object; None when it is not such a path.

    groups: API groups that are there and have no resources.
    """
    if path == "/version":
        return VERSION
    if path in _HEALTH:
        return "ok"
    group_versions = sorted(
        {kind[1] for kind in kinds.values()}
        | _NO_GROUP_VERSIONS
        | {_VERSIONS.get(name, f"{name}/v1") for name in groups}
    )
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    if path == "/apis":
        named = [_group(text) for text in group_versions if "/" in text]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": named}
    asked = path.removeprefix("/apis/").removeprefix("/api/")
    if asked in group_versions and path.startswith("/api"):
        return _resources(asked, kinds)
    by_group = {text.partition("/")[0]: text for text in group_versions if "/" in text}
    if asked in by_group and path.startswith("/apis/"):
        return {"kind": "APIGroup", "apiVersion": "v1", **_group(by_group[asked])}
    return None


def _group(group_version: str) -> Json:
    group, _, version = group_version.partition("/")
    one = {"groupVersion": group_version, "version": version}
    return {"name": group, "versions": [one], "preferredVersion": one}


def _resources(group_version: str, kinds: Kinds) -> Json:
    found = [
        {
            "name": name.partition(".")[0],
            "singularName": kind[0].lower(),
            "kind": kind[0],
            "namespaced": kind[2],
            "verbs": VERBS,
        }
        for name, kind in sorted(kinds.items())
        if kind[1] == group_version
    ]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version,
        "resources": found,
    }


def review(desk: Desk, resource: str, body: Json) -> Json:
    """Answer a review of the caller's own rights, or of who the caller is."""
    review = {"apiVersion": body.get("apiVersion"), "kind": REVIEWS[resource], "metadata": {}}
    if resource.startswith("selfsubjectreviews"):
        groups = ["system:serviceaccounts", "system:authenticated"]
        return {**review, "status": {"userInfo": {"username": desk.user, "groups": groups}}}
    if resource.startswith("selfsubjectrulesreviews"):
        every = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
        status = {"resourceRules": [every], "nonResourceRules": [], "incomplete": True}
        return {**review, "spec": body.get("spec") or {}, "status": status}
    asked = body["spec"].get("resourceAttributes") or {}
    named = asked.get("resource", "*")
    if asked.get("group"):
        named = f"{named}.{asked['group']}"
    if asked.get("subresource"):
        named = f"{named}/{asked['subresource']}"
    allowed = desk.allows(asked.get("verb", "*"), named)
    why = {} if allowed else {"reason": "the test lets the double deny it"}
    return {**review, "spec": body["spec"], "status": {"allowed": allowed, **why}}
