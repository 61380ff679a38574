"""Whether pods can reach the object store that a gang would write to, as far as settings tell.

Pods see what their volumes mount, never the folders of the machine that declares a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from tracks_dagster.kubernetes.settings.cluster import ClusterSettings
from tracks_dagster.reasons.kube_json import mapping, mappings
from tracks_dagster.track.records import Json

TRAINER = "trainer"  # the template's container that ours is laid over; the first where none has it
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_HERE = ("localhost", "127.0.0.1", "::1", "0.0.0.0")
_READ_ONLY = ("configMap", "secret", "downwardAPI", "projected", "image")


def why_unreachable(store_url: str, cluster: ClusterSettings) -> str | None:
    """Return in words why the gang's pods cannot write to the store; None when nothing speaks
    against it. Networks and credentials are not looked at."""
    path = local_path(store_url)
    return _endpoint_problem(cluster) if path is None else _folder_problem(path, cluster)


def local_path(store_url: str) -> str | None:
    """Return the folder of a store that is one, None for a remote one."""
    scheme, separator, rest = store_url.partition("://")
    if not separator:
        return store_url
    return unquote(rest.removeprefix("localhost")) if scheme == "file" else None


def gives_credentials(cluster: ClusterSettings) -> bool:
    """Whether anything in the settings may give pods the credentials of a remote store."""
    return bool(cluster.environment_from or cluster.service_account or cluster.pod_template)


def _folder_problem(path: str, cluster: ClusterSettings) -> str | None:
    mount = _mount_of(path, cluster)
    if mount is None:
        return (
            f"The store {path} is a folder of this machine, which no volume mounts into the pods. Set "
            "TRACKS_STORE to s3://bucket/prefix, or mount the shared volume that holds it at the same "
            "path (volumes and volume_mounts in kubernetes.yaml)."
        )
    volume = next((v for v in _volumes(cluster) if v.get("name") == mount.get("name")), {})
    at = f"volume {mount.get('name')} at {mount.get('mountPath')}"
    if "emptyDir" in volume:
        return (
            f"The store {path} lies on {at}, an emptyDir: every pod has its own, and it goes with the "
            "pod. Mount a volume there that all pods share."
        )
    if mount.get("readOnly") or any(source in volume for source in _READ_ONLY):
        return f"The store {path} lies on {at}, which is read-only; ranks write there."
    return None


def _endpoint_problem(cluster: ClusterSettings) -> str | None:
    for name in _ENDPOINTS:
        url = cluster.environment.get(name)
        if url is not None and urlsplit(url).hostname in _HERE:
            return (
                f"{name} is {url}: in a pod, that is the pod itself. Name the address that the store "
                "has within the cluster."
            )
    return None


def _mount_of(path: str, cluster: ClusterSettings) -> Mapping[str, Json] | None:
    """Return the deepest mount that holds `path`."""
    wanted = PurePosixPath(path)
    holding = [
        mount
        for mount in _mounts(cluster)
        if wanted.is_relative_to(PurePosixPath(str(mount.get("mountPath"))))
    ]
    return max(holding, key=lambda mount: len(str(mount.get("mountPath"))), default=None)


def _mounts(cluster: ClusterSettings) -> Iterator[Mapping[str, Json]]:
    yield from cluster.volume_mounts
    containers = mappings(_spec(cluster).get("containers"))
    named = [each for each in containers if each.get("name") == TRAINER]
    for container in (named or containers)[:1]:
        yield from mappings(container.get("volumeMounts"))


def _volumes(cluster: ClusterSettings) -> list[Mapping[str, Json]]:
    return [*cluster.volumes, *mappings(_spec(cluster).get("volumes"))]


def _spec(cluster: ClusterSettings) -> Mapping[str, Json]:
    return mapping(cluster.pod_template.get("spec"))
