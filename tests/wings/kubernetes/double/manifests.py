"""What the API server makes of a manifest: defaults, and 422 for what breaks a rule of the API."""

from __future__ import annotations

import re
import uuid

from tests.wings.kubernetes.double.answers import ApiError, Json, invalid
from tests.wings.kubernetes.double.kinds import KINDS, Kinds
from tests.wings.kubernetes.double.shapes import born

NAME_MAX = 63
_LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
_LABEL_VALUE = re.compile(r"^(|[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)$")


def prepared(resource: str, given: Json, namespace: str, kinds: Kinds = KINDS) -> Json:
    """Return the object to keep: checked, with defaults."""
    kind, api, namespaced = kinds[resource]
    _same_kind(given, kind, api)
    meta = given.setdefault("metadata", {})
    given |= {"apiVersion": api, "kind": kind}
    if namespaced:
        meta["namespace"] = namespace
    name = meta.get("name") or ""
    if not name and not meta.get("generateName"):
        raise invalid(kind, "", "metadata.name: Required value: name or generateName is required")
    for label, value in (meta.get("labels") or {}).items():
        if len(str(value)) > NAME_MAX or not _LABEL_VALUE.match(str(value)):
            why = f"metadata.labels: Invalid value: {value!r} of {label}: must be no more than "
            raise invalid(kind, name, why + "63 characters, alphanumeric, '-', '_' or '.'")
    if resource == "jobs.batch":
        return _job(given)
    if resource == "pods":
        _pod_spec("Pod", name, given["spec"])
        born(given)
    if resource == "services" and (len(name) > NAME_MAX or not _LABEL.match(name)):
        raise invalid(kind, name, "metadata.name: must be a DNS-1035 label, 63 characters at most")
    return given


def _same_kind(given: Json, kind: str, api: str) -> None:
    """Raise 400 for a manifest that was posted to the path of another kind."""
    named = (given.get("kind") or kind, given.get("apiVersion") or api)
    if named != (kind, api):
        why = f'{named[0]} in version "{named[1]}" cannot be handled as a {kind} in {api}'
        raise ApiError(400, "BadRequest", why)


def _job(job: Json) -> Json:
    meta, spec = job["metadata"], job.get("spec") or {}
    name = meta.get("name") or meta["generateName"] + "xxxxx"
    if len(name) > NAME_MAX:
        why = f'spec.template.labels: Invalid value: "{name}": must be no more than 63 characters'
        raise invalid("Job.batch", name, why)
    if not _LABEL.match(name):
        why = f'metadata.name: Invalid value: "{name}": a lowercase RFC 1123 label'
        raise invalid("Job.batch", name, why)
    template = spec.get("template") or {}
    _pod_spec("Job.batch", name, template.get("spec") or {})
    if spec.get("completionMode") == "Indexed" and not spec.get("completions"):
        why = "spec.completions: Required value: when completion mode is Indexed"
        raise invalid("Job.batch", name, why)
    defaults = {"parallelism": 1, "completions": 1, "backoffLimit": 6, "suspend": False}
    job["spec"] = spec = {**defaults, "completionMode": "NonIndexed", **spec}
    uid = str(uuid.uuid4())  # a Job's selector needs one before the Job has its own
    own = {"batch.kubernetes.io/job-name": name, "job-name": name}
    own |= {"batch.kubernetes.io/controller-uid": uid, "controller-uid": uid}
    labels = template.setdefault("metadata", {}).get("labels") or {}
    template["metadata"]["labels"] = {**labels, **own}
    spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    job["status"] = {}
    return job


def _pod_spec(kind: str, name: str, spec: Json) -> None:
    containers = spec.get("containers") or []
    if not containers:
        raise invalid(kind, name, "spec.template.spec.containers: Required value")
    if len(containers) > 1 or spec.get("initContainers"):
        raise invalid(kind, name, "the double runs one container a pod, and no init containers")
    if kind == "Job.batch" and spec.get("restartPolicy") not in ("Never", "OnFailure"):
        why = 'spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"'
        raise invalid(kind, name, why)
    if spec.get("restartPolicy") == "OnFailure":
        raise invalid(kind, name, "the double restarts no container: use restartPolicy Never")
    volumes = {volume["name"] for volume in spec.get("volumes") or ()}
    for index, mount in enumerate(containers[0].get("volumeMounts") or ()):
        if mount["name"] not in volumes:
            where = f"spec.containers[0].volumeMounts[{index}].name"
            raise invalid(kind, name, f'{where}: Not found: "{mount["name"]}"')
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("serviceAccountName", "default")
