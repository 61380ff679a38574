"""What a request is, what its path names, and what is answered. No sockets here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.wings.kubernetes.double import answers
from tests.wings.kubernetes.double.answers import Json
from tests.wings.kubernetes.double.faults import Misbehaviour
from tests.wings.kubernetes.double.selectors import truth
from tests.wings.kubernetes.double.streams import Alive

_PATH = re.compile(
    r"^/(?:api|apis/(?P<group>[^/]+))/(?P<version>[^/]+)"
    r"(?:/namespaces/(?P<namespace>[^/]+)(?=/[a-z]+))?"
    r"/(?P<resource>[a-z]+)(?:/(?P<name>[^/]+)(?:/(?P<part>[a-z]+))?)?$"
)
_PARTS_OF_NAMESPACES = {"status", "finalize"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, read. kind: the content type of its body."""

    method: str
    path: str
    query: dict[str, str] = field(default_factory=dict)
    body: Any = None
    kind: str = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An object, or a stream of events or of log lines, or a text."""

    code: int = 200
    body: Json | None = None
    text: str | None = None
    events: Iterator[Json] | None = None
    lines: Iterator[bytes] | None = None
    wrong: Misbehaviour = field(default_factory=Misbehaviour)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a path names. resource: with its group; part: log, status, eviction."""

    resource: str
    group_version: str
    namespace: str
    name: str
    part: str


def place_of(path: str) -> Place:
    """Read a path; 404 when it is none of an API."""
    match = _PATH.match(path)
    if match is None:
        raise answers.unknown_path(path)
    group, version = match["group"], match["version"]
    namespace, resource, name = match["namespace"] or "", match["resource"], match["name"] or ""
    part = match["part"] or ""
    if namespace and resource in _PARTS_OF_NAMESPACES and not name:
        namespace, resource, name, part = "", "namespaces", namespace, resource
    return Place(
        resource=f"{resource}.{group}" if group else resource,
        group_version=f"{group}/{version}" if group else version,
        namespace=namespace,
        name=name,
        part=part,
    )


def verb_of(request: Request, place: Place) -> str:
    """Return the verb as a role names it."""
    if request.method == "GET" and not place.name:
        return "watch" if truth(request.query, "watch") else "list"
    if request.method == "DELETE" and not place.name:
        return "deletecollection"
    return {"GET": "get", "POST": "create", "PUT": "update"}.get(
        request.method, request.method.lower()
    )


Handle = Callable[[Request, Alive], Answer]
