"""Label and field selectors, as far as clients use them: =, ==, !=, in, notin, exists, not exists."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tests.wings.kubernetes.double.answers import ApiError, Json

Chosen = Callable[[Json], bool]

_SET = re.compile(r"^(?P<key>\S+)\s+(?P<op>in|notin)\s*\((?P<values>[^)]*)\)$")
_EQUAL = re.compile(r"^(?P<key>[^!=\s]+)\s*(?P<op>==|=|!=)\s*(?P<value>\S*)$")


def truth(query: dict[str, str], name: str) -> bool:
    """Return a flag of a query as the API server reads it: the Python client writes "True"."""
    return name in query and query[name].lower() not in ("false", "0")


def chosen(*, labels: str, fields: str, namespace: str, known: set[str]) -> Chosen:
    """Return the test for all three; empty strings choose everything. known: the fields that may
    be named."""
    wanted = [_requirement(part.strip()) for part in _split(labels)]
    paths = [_field(part.strip(), known) for part in _split(fields)]

    def test(found: Json) -> bool:
        meta = found["metadata"]
        return (
            (not namespace or meta.get("namespace") == namespace)
            and all(holds(meta.get("labels") or {}) for holds in wanted)
            and all(holds(found) for holds in paths)
        )

    return test


def exact_label(labels: str) -> tuple[str, str] | None:
    """Return a label that all that is chosen has, if the selector names one."""
    matches = (_EQUAL.match(part.strip()) for part in _split(labels))
    return next(((m["key"], m["value"]) for m in matches if m and m["op"] != "!="), None)


def _split(text: str) -> list[str]:
    return [part for part in re.split(r",(?![^(]*\))", text) if part.strip()]


def _requirement(text: str) -> Callable[[dict[str, str]], bool]:
    if match := _SET.match(text):
        key, values = match["key"], {v.strip() for v in match["values"].split(",")}
        if match["op"] == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if match := _EQUAL.match(text):
        key, value = match["key"], match["value"]
        if match["op"] == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    if text.startswith("!"):
        return lambda labels: text[1:] not in labels
    return lambda labels: text in labels


def _field(text: str, known: set[str]) -> Chosen:
    match = _EQUAL.match(text)
    if match is None or match["key"] not in known:
        name = match["key"] if match else text
        raise ApiError(400, "BadRequest", f"field label not supported: {name}")
    path, value, equal = match["key"].split("."), match["value"], match["op"] != "!="

    def test(found: Json) -> bool:
        at: Any = found
        for name in path:
            at = at.get(name) if isinstance(at, dict) else None
        if path == ["source"] and isinstance(at, dict):
            at = at.get("component")
        result = str(at).lower() if isinstance(at, bool) else str(at or "")
        return (result == value) is equal

    return test
