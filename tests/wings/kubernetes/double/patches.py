"""PATCH in the three ways that a client may ask for: JSON patch, merge patch, strategic merge patch.

A strategic one merges lists of objects by a key of theirs (conditions by type, containers by name);
a merge patch replaces a list whole. Server-side apply is not here.
"""

from __future__ import annotations

from typing import Any

from tests.wings.kubernetes.double.answers import ApiError, Json

JSON_PATCH = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"

# field -> the key by which its list merges; what is not named is replaced whole
_KEYS = {
    "conditions": "type",
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ownerReferences": "uid",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "schedulingGates": "name",
    "addresses": "type",
    "secrets": "name",
}
_PORTS = {"Service": "port"}  # a container's ports merge by containerPort
_PRIMITIVES = frozenset({"finalizers"})


def apply(found: Json, patch: Any, kind: str) -> None:
    """Edit the object in place. kind: the content type."""
    if kind == JSON_PATCH:
        if not isinstance(patch, list):
            raise ApiError(400, "BadRequest", "a JSON patch is a list of operations")
        for step in patch:
            _step(found, step)
        return
    if not isinstance(patch, dict):
        raise ApiError(400, "BadRequest", f"a patch of {kind} is an object")
    if kind == MERGE:
        _merge(found, patch)
    elif kind == STRATEGIC:
        _strategic(found, patch, found.get("kind", ""))
    else:
        raise ApiError(
            415,
            "UnsupportedMediaType",
            "the body of the request was in an unknown format - accepted media types include: "
            f"{JSON_PATCH}, {MERGE}, {STRATEGIC}",
        )


def _merge(at: Json, patch: Json) -> None:
    for name, value in patch.items():
        if value is None:
            at.pop(name, None)
        elif isinstance(value, dict):
            if not isinstance(at.get(name), dict):
                at[name] = {}
            _merge(at[name], value)
        else:
            at[name] = value


def _strategic(at: Json, patch: Json, kind: str) -> None:
    if patch.get("$patch") == "replace":
        at.clear()
        at.update({k: v for k, v in patch.items() if k != "$patch"})
        return
    for name, value in patch.items():
        key = _PORTS.get(kind, "containerPort") if name == "ports" else _KEYS.get(name)
        if name.startswith("$deleteFromPrimitiveList/"):
            plain = name.partition("/")[2]
            at[plain] = [v for v in at.get(plain) or () if v not in value]
        elif name.startswith("$"):
            continue  # an order, or keys to retain: nothing that is read here
        elif value is None:
            at.pop(name, None)
        elif isinstance(value, dict):
            if not isinstance(at.get(name), dict):
                at[name] = {}
            _strategic(at[name], value, kind)
            if value.get("$patch") == "delete":
                del at[name]
        elif name in _PRIMITIVES:
            at[name] = [*(at.get(name) or ()), *(v for v in value if v not in at.get(name, ()))]
        elif key is not None:
            at[name] = _merged_list(at.get(name) or [], value, key, kind)
        else:
            at[name] = value


def _merged_list(old: list[Json], patch: list[Json], key: str, kind: str) -> list[Json]:
    if any(item.get("$patch") == "replace" for item in patch):
        return [item for item in patch if "$patch" not in item]
    merged = list(old)
    for item in patch:
        same = next((o for o in merged if o.get(key) == item.get(key)), None)
        if item.get("$patch") == "delete":
            merged = [o for o in merged if o is not same]
        elif same is None:
            merged.append(item)
        else:
            _strategic(same, item, kind)
    return merged


def _step(found: Json, step: Json) -> None:
    if step["op"] in ("move", "copy"):
        way = _way(step["from"])
        value = _at(found, way[:-1], step["from"])[way[-1]]
        if step["op"] == "move":
            _step(found, {"op": "remove", "path": step["from"]})
        _step(found, {"op": "add", "path": step["path"], "value": value})
        return
    *way, last = _way(step["path"])
    at = _at(found, way, step["path"])
    try:
        place: Any = int(last) if isinstance(at, list) and last != "-" else last
        match step["op"], isinstance(at, list):
            case "remove", _:
                del at[place]
            case "test", _:
                if (at[place] if isinstance(at, list) else at.get(place)) != step.get("value"):
                    why = f"testing value {step['path']} failed: test failed"
                    raise ApiError(422, "Invalid", f"the server rejected our request: {why}")
            case "replace", _:
                at[place] = step["value"] if place in at or isinstance(at, list) else at[place]
            case "add", True:
                at.insert(len(at) if place == "-" else place, step["value"])
            case "add", False:
                at[place] = step["value"]
            case other, _:
                raise ApiError(400, "BadRequest", f"unknown operation {other!r}")
    except (KeyError, IndexError, ValueError) as error:
        raise _no_path(step["path"]) from error


def _way(path: str) -> list[str]:
    return [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]]


def _at(found: Json, way: list[str], path: str) -> Any:
    at: Any = found
    try:
        for name in way:
            at = at[int(name)] if isinstance(at, list) else at[name]
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise _no_path(path) from error
    return at


def _no_path(path: str) -> ApiError:
    why = "the server rejected our request due to an error in our request"
    return ApiError(422, "Invalid", f"{why}: no such path: {path}")
