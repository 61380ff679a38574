"""PATCH and PUT: what of an object they may change, and what follows from a change of its spec.

A status is changed at its own path only, and nothing else is changed there.
"""

from __future__ import annotations

import json

from tests.wings.kubernetes.double import answers, patches
from tests.wings.kubernetes.double.answers import ApiError, Json
from tests.wings.kubernetes.double.objects import Objects, copied
from tests.wings.kubernetes.double.requests import Place, Request

HAVE_STATUS = frozenset({"pods", "services", "nodes", "namespaces", "jobs.batch", "resourcequotas"})
_OF_SERVER = ("uid", "resourceVersion", "name", "namespace", "creationTimestamp", "generation")
_FIXED_OF_JOBS = ("completions", "selector", "completionMode", "podFailurePolicy", "managedBy")
_FREE_OF_PODS = ("activeDeadlineSeconds", "terminationGracePeriodSeconds", "tolerations")
_FREE_OF_TEMPLATES = ("nodeSelector", "tolerations", "affinity", "schedulingGates")


def edit(objects: Objects, request: Request, place: Place) -> Json:
    """Do a PATCH or a PUT and return the object."""
    found = objects.get(place.resource, place.namespace, place.name)
    body = request.body if isinstance(request.body, dict) else {}
    version = (body.get("metadata") or {}).get("resourceVersion")
    uid = (body.get("metadata") or {}).get("uid")
    if uid and uid != found["metadata"]["uid"]:
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: "
        raise answers.conflict(place.resource, place.name, why + found["metadata"]["uid"])
    if version:
        found = {**found, "metadata": {**found["metadata"], "resourceVersion": version}}

    def change(newest: Json) -> None:
        before = copied(newest)
        wanted = _wanted(before, request, has_parts="." not in place.resource)
        _put(newest, before, wanted, place)
        _check(place, before, newest)
        if place.part != "status" and newest.get("spec") != before.get("spec"):
            newest["metadata"]["generation"] = before["metadata"].get("generation", 1) + 1

    changed = objects.change(place.resource, found, change, exact=bool(version))
    if changed is None:
        raise answers.not_found(place.resource, place.name)
    meta = changed["metadata"]
    if "deletionTimestamp" in meta and not meta.get("finalizers") and place.resource != "pods":
        objects.remove(place.resource, changed)
    return changed


def _wanted(before: Json, request: Request, *, has_parts: bool) -> Json:
    if request.method == "PUT":
        return copied(request.body)  # type: ignore[no-any-return]
    kind = request.kind.partition(";")[0]
    group = before.get("apiVersion", "v1").partition("/")[0]
    custom = not has_parts and group.endswith(".x-k8s.io")
    if custom and kind == patches.STRATEGIC:
        raise ApiError(
            415,
            "UnsupportedMediaType",
            "the body of the request was in an unknown format - accepted media types include: "
            f"{patches.JSON_PATCH}, {patches.MERGE}, application/apply-patch+yaml",
        )
    wanted: Json = copied(before)
    patches.apply(wanted, copied(request.body), kind)
    return wanted


def _put(newest: Json, before: Json, wanted: Json, place: Place) -> None:
    """Make `newest` what is wanted, as far as this path may."""
    if place.part == "status":
        newest["status"] = wanted.get("status") or {}
        return
    newest.clear()
    newest.update(wanted)
    if place.resource in HAVE_STATUS or "x-k8s.io" in place.resource:
        newest.pop("status", None)
        if "status" in before:
            newest["status"] = before["status"]
    newest |= {k: before[k] for k in ("kind", "apiVersion") if k in before}
    meta = newest.setdefault("metadata", {})
    for name in (*_OF_SERVER, "deletionTimestamp", "deletionGracePeriodSeconds"):
        meta.pop(name, None)
        if name in before["metadata"]:
            meta[name] = before["metadata"][name]


def _check(place: Place, before: Json, after: Json) -> None:
    """Raise 422 for what may not change any more."""
    old, new = before.get("spec") or {}, after.get("spec") or {}
    if place.resource == "jobs.batch":
        for name in _FIXED_OF_JOBS:
            if old.get(name) != new.get(name) and not _is_elastic(name, old, new):
                why = f"spec.{name}: Invalid value: {json.dumps(new.get(name))}: field is immutable"
                raise answers.invalid("Job.batch", place.name, why)
        if _fixed_template(before, old) != _fixed_template(before, new):
            why = "spec.template: Invalid value: {...}: field is immutable"
            raise answers.invalid("Job.batch", place.name, why)
    if place.resource == "pods" and _fixed_of_pod(old) != _fixed_of_pod(new):
        why = (
            "spec: Forbidden: pod updates may not change fields other than "
            "`spec.containers[*].image`,`spec.initContainers[*].image`,"
            "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing "
            "tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was "
            "previously negative)"
        )
        raise answers.invalid("Pod", place.name, why)


def _is_elastic(name: str, old: Json, new: Json) -> bool:
    """An Indexed Job may be resized: completions and parallelism in one."""
    indexed = new.get("completionMode") == "Indexed"
    return name == "completions" and indexed and new.get("parallelism") == new.get("completions")


def _fixed_template(job: Json, spec: Json) -> Json:
    template = copied(spec.get("template") or {})
    if old_is_suspended(job):
        for name in _FREE_OF_TEMPLATES:
            (template.get("spec") or {}).pop(name, None)
        for name in ("labels", "annotations"):
            (template.get("metadata") or {}).pop(name, None)
    return template  # type: ignore[no-any-return]


def old_is_suspended(job: Json) -> bool:
    """Whether a Job waits and none of its pods ran since: then its template may be directed."""
    return bool(job["spec"].get("suspend")) and "startTime" not in (job.get("status") or {})


def _fixed_of_pod(spec: Json) -> Json:
    kept = {k: v for k, v in copied(spec).items() if k not in _FREE_OF_PODS}
    for container in kept.get("containers") or ():
        container.pop("image", None)
    return kept
