"""What a container finds in its environment: variables, volumes, and a network that is this machine's.

Pods of the double share one machine, so three things that a cluster keeps apart are translated in
the values of variables and in the command: a path below a volume's mount becomes a local folder, the
name of a gang's pod (`<hostname>.<subdomain>…`) becomes 127.0.0.1, and a port that the container
declares becomes a free one, the same for all pods of a Job.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.ports import free_port
from tests.wings.kubernetes.double.answers import Json
from tests.wings.kubernetes.double.volumes import CLAIM, MissingReference

ADDRESS = "127.0.0.1"
_REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)|\$\$")
PORTS_MAX = 10_000

Read = Callable[[str, str], Mapping[str, str]]  # resource, name -> data


class Network:
    """Which local port stands for which port of a Job."""

    def __init__(self) -> None:
        self._ports: dict[tuple[str, int], int] = {}

    def port(self, owner: str, port: int) -> int:
        """Return the local port; drawn once for a Job and a port."""
        if (owner, port) not in self._ports:
            if len(self._ports) >= PORTS_MAX:
                raise AssertionError(f"More than {PORTS_MAX} ports in one double: close it.")
            self._ports[owner, port] = free_port()
        return self._ports[owner, port]


class Translation:
    """Paths, names and ports of one pod."""

    def __init__(self, pod: Json, *, folder: Path, network: Network) -> None:
        container = pod["spec"]["containers"][0]
        self.folders = _volumes(pod, container, folder)
        owners = pod["metadata"].get("ownerReferences") or [pod["metadata"]]
        self._ports = {
            str(p["containerPort"]): str(network.port(owners[0]["uid"], p["containerPort"]))
            for p in container.get("ports") or ()
        }
        self._name = None
        if subdomain := pod["spec"].get("subdomain"):
            zone = rf"[a-z0-9-]+\.{subdomain}(\.[a-z0-9-]+(\.svc(\.cluster\.local)?)?)?"
            self._name = re.compile(rf"(?<![A-Za-z0-9.-]){zone}(?![A-Za-z0-9.-])")

    def __call__(self, text: str) -> str:
        """Return the text with all three translated."""
        if self._name is not None:
            text = self._name.sub(ADDRESS, text)
        for port, local in self._ports.items():
            text = re.sub(rf"(?:^|(?<=[:=])){port}(?![0-9])", local, text)
        for mount, folder in self.folders.items():
            text = re.sub(rf"(?<![A-Za-z0-9._/-]){re.escape(mount)}(?=/|$|[:,])", str(folder), text)
        return text


def environment(pod: Json, *, image: Mapping[str, str], read: Read) -> dict[str, str]:
    """Return the variables: the image's, then envFrom's, then the spec's with $(NAME) expanded."""
    container = pod["spec"]["containers"][0]
    found = dict(image)
    for source in container.get("envFrom") or ():
        prefix = source.get("prefix", "")
        for kind, resource in (("secretRef", "secrets"), ("configMapRef", "configmaps")):
            if kind in source:
                data = _maybe(read, resource, source[kind])
                found |= {prefix + key: value for key, value in data.items()}
    for entry in container.get("env") or ():
        value = _value(pod, entry, read)
        if value is not None:
            found[entry["name"]] = expand(value, found)
    return found


def expand(text: str, values: Mapping[str, str]) -> str:
    """Replace $(NAME) by its value where there is one; $$ is a dollar."""

    def replace(match: re.Match[str]) -> str:
        return "$" if match[1] is None else values.get(match[1], match[0])

    return _REFERENCE.sub(replace, text)


def _value(pod: Json, entry: Json, read: Read) -> str | None:
    source = entry.get("valueFrom") or {}
    if "fieldRef" in source:
        return field(pod, source["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in source:
        kind, _, name = source["resourceFieldRef"]["resource"].partition(".")
        resources = pod["spec"]["containers"][0].get("resources") or {}
        return str((resources.get(kind) or {}).get(name, "0"))
    for kind, resource in (("secretKeyRef", "secrets"), ("configMapKeyRef", "configmaps")):
        if kind in source:
            wanted = source[kind]
            data = _maybe(read, resource, wanted)
            if wanted["key"] not in data and not wanted.get("optional"):
                where = f"{resource.removesuffix('s').capitalize()} {pod['metadata']['namespace']}"
                raise MissingReference(
                    f"couldn't find key {wanted['key']} in {where}/{wanted['name']}"
                )
            return data.get(wanted["key"])
    return str(entry.get("value") or "")


def _maybe(read: Read, resource: str, source: Json) -> Mapping[str, str]:
    """Return the data; an optional source that is not there has none."""
    try:
        return read(resource, source["name"])
    except MissingReference:
        if source.get("optional"):
            return {}
        raise


def field(pod: Json, path: str) -> str:
    """Return a field of the downward API, as in metadata.annotations['name']."""
    if match := re.match(r"^metadata\.(labels|annotations)\['([^']+)'\]$", path):
        return str((pod["metadata"].get(match[1]) or {}).get(match[2], ""))
    if path in ("status.podIP", "status.podIPs", "status.hostIP", "status.hostIPs"):
        return ADDRESS
    at: Any = pod
    for name in path.split("."):
        at = at.get(name) if isinstance(at, dict) else None
    return str(at or "")


def _volumes(pod: Json, container: Json, folder: Path) -> dict[str, Path]:
    """Return mount path → local folder, the longest path first. /dev/shm stays the machine's."""
    named = {volume["name"]: volume for volume in pod["spec"].get("volumes") or ()}
    found = {}
    for mount in container.get("volumeMounts") or ():
        path, volume = mount["mountPath"].rstrip("/"), named[mount["name"]]
        if path == "/dev/shm":
            continue
        if "hostPath" in volume:
            local = Path(volume["hostPath"]["path"])
        elif CLAIM in volume:  # one folder for all pods that claim it
            local = folder.parent / "claims" / volume[CLAIM]["claimName"]
            local.mkdir(parents=True, exist_ok=True)
        else:
            local = folder / "volumes" / volume["name"]
            local.mkdir(parents=True, exist_ok=True)
        found[path] = local / mount.get("subPath", "")
    return dict(sorted(found.items(), key=lambda item: -len(item[0])))
