"""Requests and settings for gangs on Kubernetes, and where to look in the manifests made of them."""

from __future__ import annotations

from typing import Any

from tracks_dagster.attempts.ports import GangSpec, RankCommand
from tracks_dagster.track.bodies import ComputeRequest
from tracks_dagster.track.records import Json
from tracks_dagster.wings.kubernetes.manifests import gang_objects
from tracks_dagster.wings.kubernetes.settings import ClusterSettings, DeviceClass

IMAGE = "registry.example/tracks:1"
H200 = DeviceClass(node_selector={"gpu": "h200"})


def cluster(**changes: Any) -> ClusterSettings:
    """Return settings with one class of devices, changed."""
    fields: dict[str, Any] = {"namespace": "tracks", "device_classes": {"h200": H200}}
    return ClusterSettings(**{"image": IMAGE} | fields | changes)


def gang(run_id: str = "gpt-7", attempt_id: int = 2, **changes: Any) -> GangSpec:
    """Return a gang of two ranks; `changes` are of its request, or of itself where it has them."""
    own = {"command", "code_key", "environment", "store_url", "opened_seq", "workload_class"} & set(
        changes
    )
    request = {name: value for name, value in changes.items() if name not in own}
    fields: dict[str, Any] = {
        "run_id": run_id,
        "attempt_id": attempt_id,
        "opened_seq": 5,
        "compute": ComputeRequest(**{"launcher": "kubernetes", "ranks": 2} | request),
        "store_url": "s3://bucket/tracks",
        "command": RankCommand(words=("train.py",)),
    }
    return GangSpec(**fields | {name: changes[name] for name in own})


def service_of(spec: GangSpec, settings: ClusterSettings) -> Json:
    """Return the Service."""
    return gang_objects(spec, settings)[0]


def job_of(spec: GangSpec, settings: ClusterSettings) -> Json:
    """Return the Job, or the JobSet."""
    return gang_objects(spec, settings)[1]


def template_of(spec: GangSpec, settings: ClusterSettings) -> Json:
    """Return the PodTemplateSpec, of a JobSet's only member too."""
    job = job_of(spec, settings)
    if job["kind"] == "JobSet":
        job = job["spec"]["replicatedJobs"][0]["template"]
    return job["spec"]["template"]


def pod_of(spec: GangSpec, settings: ClusterSettings) -> Json:
    """Return the spec of the gang's pods."""
    return template_of(spec, settings)["spec"]


def trainer_of(spec: GangSpec, settings: ClusterSettings) -> Json:
    """Return the container that trains."""
    return pod_of(spec, settings)["containers"][0]


def variables(spec: GangSpec, settings: ClusterSettings) -> dict[str, Json]:
    """Return its variables: name → value, or the field that it comes from."""
    return {
        entry["name"]: entry["value"] if "value" in entry else _source(entry["valueFrom"])
        for entry in trainer_of(spec, settings)["env"]
    }


def _source(source: Json) -> Json:
    return source["fieldRef"]["fieldPath"] if "fieldRef" in source else source
