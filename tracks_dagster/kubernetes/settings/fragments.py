"""Fragments of the API's own objects in a cluster's settings: variables, volumes, tolerations, pods.

They keep the API's field names and stay JSON. Only what the API server would not tell at once, or
would drop without a word, is checked here; the rest is its own work, when the gang's Job is created.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from tracks_dagster.attempts.kube_words import DNS_NAME, toleration_problems
from tracks_dagster.kubernetes.settings.nodes import DNS_LABEL, items_of, to_json, unknown_keys
from tracks_dagster.track.records import Json
from tracks_dagster.track.text.located import Node, Problem, entries, problem
from tracks_dagster.track.text.nearest import unknown
from tracks_dagster.track.text.redact import is_secret_name, secrets_of
from tracks_dagster.track.text.units import in_quotes, shown

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_OURS = "TRACKS_"  # what a gang is told by its launcher
_MOUNT_KEYS = (
    "name",
    "mountPath",
    "subPath",
    "subPathExpr",
    "readOnly",
    "recursiveReadOnly",
    "mountPropagation",
)
_TOLERATION_KEYS = ("key", "operator", "value", "effect", "tolerationSeconds")
_REFS = ("configMapRef", "secretRef")


def read_environment(path: str, node: Node, problems: list[Problem]) -> dict[str, str]:
    """Read variables of each pod; a secret among them is a problem, for everybody reads manifests."""
    found: dict[str, str] = {}
    for name, given in entries(node, path, problems):
        where = f"{path}.{name}"
        if not _VARIABLE.fullmatch(name) or name.startswith(_OURS):
            why = "belongs to the launcher" if name.startswith(_OURS) else "cannot name a variable"
            problems.append(problem(given, path, f"{name!r} {why}; choose another name."))
        elif not isinstance(given.value, str):
            problems.append(problem(given, where, in_quotes(given.value)))
        elif _is_secret(name, given.value):
            problems.append(problem(given, where, _SECRET))
        else:
            found[name] = given.value
    return found


def read_environment_from(path: str, node: Node, problems: list[Problem]) -> tuple[Json, ...]:
    """Read a container's `envFrom`: each item names a Secret or a ConfigMap."""
    for where, item in _numbered(path, node, problems):
        keys = unknown_keys(where, item, ("prefix", *_REFS), problems)
        named = [key for key in _REFS if key in keys]
        if len(named) != 1:
            words = "name one source, as {secretRef: {name: object-store}}, or a configMapRef."
            problems.append(problem(item, where, words))
            continue
        ref = unknown_keys(f"{where}.{named[0]}", keys[named[0]], ("name", "optional"), problems)
        _check_name(f"{where}.{named[0]}", keys[named[0]], ref.get("name"), problems, DNS_NAME)
    return _json_items(node)


def read_volumes(path: str, node: Node, problems: list[Problem]) -> tuple[Json, ...]:
    """Read volumes of each pod: a name, and one source in the API's words."""
    seen: dict[str, int] = {}
    for where, item in _numbered(path, node, problems):
        keys = dict(entries(item, where, problems))
        name = _check_name(where, item, keys.pop("name", None), problems, DNS_LABEL)
        if len(keys) != 1:
            words = "give it one source, as persistentVolumeClaim: {claimName: store}."
            problems.append(problem(item, where, words))
        if name in seen:
            problems.append(problem(item, where, f"line {seen[name]} has a volume {name} too."))
        elif name is not None:
            seen[name] = item.line
    return _json_items(node)


def read_mounts(path: str, node: Node, problems: list[Problem]) -> tuple[Json, ...]:
    """Read where volumes are mounted in the container."""
    for where, item in _numbered(path, node, problems):
        keys = unknown_keys(where, item, _MOUNT_KEYS, problems)
        _check_name(where, item, keys.get("name"), problems, DNS_LABEL)
        at = keys.get("mountPath")
        if at is None or not isinstance(at.value, str) or not at.value.startswith("/"):
            found = "nothing" if at is None else shown(at.value)
            words = f"mountPath is {found}; write an absolute path, for example /data."
            problems.append(problem(at or item, where, words))
    return _json_items(node)


def read_tolerations(path: str, node: Node, problems: list[Problem]) -> tuple[Json, ...]:
    """Read tolerations, as in a pod's spec."""
    for where, item in _numbered(path, node, problems):
        keys = unknown_keys(where, item, _TOLERATION_KEYS, problems)
        problems += [problem(item, where, words) for words in toleration_problems(_values(keys))]
    return _json_items(node)


def read_pod_template(path: str, node: Node, problems: list[Problem]) -> dict[str, Json]:
    """Read a PodTemplateSpec."""
    keys = unknown_keys(path, node, ("metadata", "spec"), problems)
    for key in keys:
        entries(keys[key], f"{path}.{key}", problems)
    return read_json_mapping(path, node, problems)


def read_json_mapping(path: str, node: Node, problems: list[Problem]) -> dict[str, Json]:
    """Read a mapping as it stands; variables in it that hold a secret are a problem."""
    if not isinstance(node.value, Mapping):
        entries(node, path, problems)
        return {}
    problems += [problem(found, path, _SECRET) for found in _secret_variables(node)]
    return dict(to_json(node))


def unmounted(root: Mapping[str, Node]) -> list[Problem]:
    """Return the mounts of a file's keys whose volume is defined neither there nor in the template."""
    known = {_name(item) for item in _list_at(root.get("volumes"))}
    known |= {_name(item) for item in _list_at(root.get("pod_template"), "spec", "volumes")}
    names = sorted(filter(None, known))
    return [
        problem(
            item,
            f"volume_mounts[{index}]",
            unknown("volume", name, names)
            if names
            else f"there is no volume {name!r}, nor any other; define it under volumes.",
        )
        for index, item in enumerate(_list_at(root.get("volume_mounts")))
        if (name := _name(item)) is not None and name not in known
    ]


_SECRET = (
    "it looks like a secret, which everybody who may read Jobs would see; put it into a Secret and "
    "name that under environment_from: [{secretRef: {name: …}}], of run workers under env_secrets: […]."
)


def _is_secret(name: str, value: str) -> bool:
    """Whether the name says so, or a password stands in the URL."""
    return bool(value) and (is_secret_name(name) or bool(secrets_of({name: value})))


def _secret_variables(node: Node) -> Iterator[Node]:
    """Yield the variables below that hold a secret: items of `env`, or NAME=value of `env_vars`."""
    if isinstance(node.value, Mapping):
        for key, below in node.value.items():
            if key == "env_vars":
                for item in _list_at(below):
                    name, _, value = str(item.value).partition("=")
                    if _is_secret(name, value):
                        yield item
            yield from _secret_variables(below)
        variable, held = _text(node.value.get("name")), _text(node.value.get("value"))
        if variable is not None and held is not None and _is_secret(variable, held):
            yield node
    elif isinstance(node.value, Sequence) and not isinstance(node.value, str):
        for item in node.value:
            yield from _secret_variables(item)


def _check_name(
    path: str, item: Node, node: Node | None, problems: list[Problem], pattern: re.Pattern[str]
) -> str | None:
    """Return the name, None and a problem where there is none that the API takes."""
    found = _text(node)
    if node is not None and found is not None and pattern.fullmatch(found):
        return found
    words = "name is missing." if node is None else f"{shown(node.value)} cannot name an object."
    problems.append(problem(node or item, path, f"{words} Use a-z, 0-9 and '-'."))
    return None


def _numbered(path: str, node: Node, problems: list[Problem]) -> list[tuple[str, Node]]:
    return [(f"{path}[{i}]", item) for i, item in enumerate(items_of(node, path, problems))]


def _json_items(node: Node) -> tuple[Json, ...]:
    found = to_json(node)
    return tuple(found) if isinstance(found, list) else ()


def _values(keys: Mapping[str, Node]) -> dict[str, Json]:
    return {key: to_json(node) for key, node in keys.items()}


def _list_at(node: Node | None, *path: str) -> list[Node]:
    for key in path:
        node = node.value.get(key) if node is not None and isinstance(node.value, Mapping) else None
    if node is None or not isinstance(node.value, Sequence) or isinstance(node.value, str):
        return []
    return list(node.value)


def _name(node: Node) -> str | None:
    return _text(node.value.get("name")) if isinstance(node.value, Mapping) else None


def _text(node: Node | None) -> str | None:
    return node.value if node is not None and isinstance(node.value, str) else None
