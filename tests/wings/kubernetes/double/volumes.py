"""What stands in a pod's volumes: the data of Secrets and ConfigMaps, and claims that are shared."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path

from tests.wings.kubernetes.double.answers import Json
from tests.wings.kubernetes.double.objects import Objects

CLAIM = "persistentVolumeClaim"


class MissingReference(Exception):
    """A pod names a Secret or ConfigMap, or a key of one, that is not there."""


class MountFailed(Exception):
    """A volume cannot be set up: its pod waits. The words are the kubelet's."""


def data_of(objects: Objects, resource: str, namespace: str, name: str) -> dict[str, str]:
    """Return what a Secret or ConfigMap holds, as text."""
    found = objects.find(resource, namespace, name)
    if found is None:
        raise MissingReference(f'{resource.removesuffix("s")} "{name}" not found')
    data = dict(found.get("data") or {})
    if resource == "secrets":
        data = {name: base64.b64decode(value).decode() for name, value in data.items()}
    return {**data, **(found.get("stringData") or {})}


def write(objects: Objects, pod: Json, folders: Mapping[str, Path]) -> None:
    """Fill the volumes that are data. folders: mount path → local folder."""
    named = {volume["name"]: volume for volume in pod["spec"].get("volumes") or ()}
    for mount in pod["spec"]["containers"][0].get("volumeMounts") or ():
        volume = named[mount["name"]]
        folder = folders.get(mount["mountPath"].rstrip("/"))
        for source, resource, label in _sources(volume):
            try:
                data = data_of(objects, resource, pod["metadata"]["namespace"], source[label])
            except MissingReference as missing:
                if source.get("optional"):
                    continue
                why = f'MountVolume.SetUp failed for volume "{mount["name"]}" : {missing}'
                raise MountFailed(why) from missing
            wanted = {i["key"]: i["path"] for i in source.get("items") or ()}
            for name, text in data.items():
                if folder is not None and (not wanted or name in wanted):
                    (folder / wanted.get(name, name)).write_text(text)


def _sources(volume: Json) -> list[tuple[Json, str, str]]:
    """Return (source, resource, the field that names it) of a volume, projected ones too."""
    found = []
    for part in (volume, *(volume.get("projected", {}).get("sources") or ())):
        if "secret" in part:
            label = "secretName" if "secretName" in part["secret"] else "name"
            found.append((part["secret"], "secrets", label))
        if "configMap" in part:
            found.append((part["configMap"], "configmaps", "name"))
    return found


def unbound(objects: Objects, pod: Json, nodes: int) -> str:
    """Return the scheduler's words about a claim that is not there, or nothing."""
    for volume in pod["spec"].get("volumes") or ():
        if CLAIM not in volume:
            continue
        name = volume[CLAIM]["claimName"]
        namespace = pod["metadata"]["namespace"]
        if objects.find("persistentvolumeclaims", namespace, name) is None:
            return (
                f'0/{nodes} nodes are available: persistentvolumeclaim "{name}" not found. not '
                f"found, preemption: 0/{nodes} nodes are available: {nodes} Preemption is not "
                "helpful for scheduling."
            )
    return ""
