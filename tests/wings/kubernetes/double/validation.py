"""Whether manifests are valid, as kubernetes-validate reads the API's own schemas, strictly.

A strict schema knows no field but the API's. Custom resources have none there: the Jobs inside a
JobSet are validated as Jobs, its own fields and those of Kueue's queues by a list; any other kind
without a schema is a problem, never passed over.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable

import jsonschema
from kubernetes_validate import utils
from referencing import Registry, Resource

from tests.wings.kubernetes.double.answers import Json

VERSIONS = ("1.32", "1.34", utils.latest_version())
_JOBSET_FIELDS = {
    "replicatedJobs",
    "network",
    "successPolicy",
    "failurePolicy",
    "startupPolicy",
    "suspend",
    "coordinator",
    "managedBy",
    "ttlSecondsAfterFinished",
}
_QUEUE_FIELDS = {
    "LocalQueue": {"clusterQueue", "stopPolicy", "fairSharing"},
    "ClusterQueue": {"resourceGroups", "cohort", "cohortName", "queueingStrategy", "preemption"}
    | {"namespaceSelector", "flavorFungibility", "admissionChecks", "stopPolicy", "fairSharing"},
    "ResourceFlavor": {"nodeLabels", "nodeTaints", "tolerations", "topologyName"},
}
_REPLICATED_FIELDS = {"name", "groupName", "template", "replicas", "dependsOn"}


def problems_of(manifests: Iterable[Json]) -> list[str]:
    """Return what is wrong with each manifest in each version."""
    distinct = {json.dumps(manifest, sort_keys=True): manifest for manifest in manifests}
    found: list[str] = []
    for manifest in distinct.values():
        name = f"{manifest.get('kind')} {(manifest.get('metadata') or {}).get('name')}"
        for version in VERSIONS:
            found += [f"{name} ({version}): {why}" for why in _problems(manifest, version)]
    return found


def _problems(manifest: Json, version: str) -> list[str]:
    if not manifest.get("kind") or not manifest.get("apiVersion"):
        return ["apiVersion and kind have to be there"]
    if manifest["kind"] == "JobSet":
        return _jobset_problems(manifest, version)
    if manifest["kind"] in _QUEUE_FIELDS:
        unknown = (manifest.get("spec") or {}).keys() - _QUEUE_FIELDS[manifest["kind"]]
        return [f"spec.{name}: unknown" for name in sorted(unknown)]
    try:
        validator = _validator(manifest["kind"], manifest["apiVersion"], version)
    except FileNotFoundError:
        return [f"no schema of {manifest['apiVersion']} {manifest['kind']} is known"]
    errors = sorted(validator.iter_errors(manifest), key=lambda error: list(map(str, error.path)))
    return [f"{'.'.join(map(str, error.path))}: {error.message[:300]}" for error in errors]


def _jobset_problems(manifest: Json, version: str) -> list[str]:
    spec = manifest.get("spec") or {}
    found = [f"spec.{name}: unknown" for name in spec.keys() - _JOBSET_FIELDS]
    for replicated in spec.get("replicatedJobs") or ():
        unknown = replicated.keys() - _REPLICATED_FIELDS
        found += [f"spec.replicatedJobs.{name}: unknown" for name in unknown]
        job = {"apiVersion": "batch/v1", "kind": "Job", **(replicated.get("template") or {})}
        found += _problems(job, version)
    return found


@functools.cache
def _validator(kind: str, api: str, version: str) -> jsonschema.Draft202012Validator:
    group, _, plain = api.rpartition("/")
    name = f"{group.partition('.')[0]}-{plain}" if group else plain
    schema = utils.schema_contents(f"{_folder(version)}/{kind.lower()}-{name}.json", version)
    registry = _definitions(version).with_resource("", Resource.from_contents(schema))
    return jsonschema.Draft202012Validator(schema, registry=registry)


@functools.cache
def _definitions(version: str) -> Registry[Json]:
    schemas = utils.schema_contents(f"{_folder(version)}/_definitions.json", version)
    found: Registry[Json] = Resource.from_contents(schemas) @ Registry()
    return found


def _folder(version: str) -> str:
    newest = [v for v in utils.all_versions() if utils.major_minor(v) == utils.major_minor(version)]
    return f"kubernetes-json-schema/v{newest[-1]}-local-strict"
