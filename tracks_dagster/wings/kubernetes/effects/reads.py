"""Reads from the API server as the API itself words it: lists, watches and logs, in plain JSON.

The client's own models are left out: 512 pods as models take seconds and ten times the memory, its
Watch hides resource versions and the reason of an end, and it returns a log as "b'…'". Every answer is
read from the stream. Nothing is tried twice here: who asks knows what a refusal means.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import cast

from kubernetes.client import ApiClient
from kubernetes.client.exceptions import ApiException
from kubernetes.config import ConfigException
from urllib3.exceptions import HTTPError
from urllib3.response import BaseHTTPResponse

from tracks_dagster.reasons.kube_json import mapping, mappings, text
from tracks_dagster.track.errors import GangError
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.records import Json

CONNECT_S = 10.0
LIST_S = 60.0  # for a reply that begins
LOG_S = 10.0
PIECE_BYTES = 64 * 1024
LIST_BYTES_MAX = 256 * 1024 * 1024
EVENT_BYTES_MAX = 8 * 1024 * 1024  # of one line of a watch; an object has at most 3 MiB
PAGE_ITEMS = 500
PAGES_MAX = 100
WORDS_MAX = 500
GONE = 410

PODS, JOBS, EVENTS, LOGS = "pods", "jobs", "events", "pods/log"
_ROOTS = {PODS: "/api/v1", EVENTS: "/api/v1", JOBS: "/apis/batch/v1"}


class ReadFailed(GangError):
    """The API server refused, or could not be reached. status: HTTP's, None without an answer."""

    def __init__(
        self, message: str, *, status: int | None = None, retry_after_s: float = 0.0
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to list and watch. labels, fields: selectors in the API's words."""

    resource: str
    labels: str = ""
    fields: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """What there was at `version`: everything, or, not `is_whole`, as much as is read at once."""

    items: list[Json]
    version: str
    is_whole: bool = True


class Reads:
    """GET requests in one namespace; safe from several threads. `cut` ends those that run."""

    def __init__(self, client: ApiClient, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._open: set[BaseHTTPResponse] = set()
        self._lock = threading.Lock()
        self._is_cut = False

    def list(self, wanted: Wanted) -> Listed:
        """Return one consistent state, page by page, PAGES_MAX pages at most; raises ReadFailed."""
        query = _selectors(wanted) | {"limit": str(PAGE_ITEMS)}
        items: list[Json] = []
        for _ in range(PAGES_MAX):
            page = self._document(wanted.resource, query)
            items += mappings(page.get("items"))
            meta = mapping(page.get("metadata"))
            query["continue"] = text(meta.get("continue"))
            if not query["continue"]:
                break
        version = text(meta.get("resourceVersion"))
        return Listed(items=items, version=version, is_whole=not query["continue"])

    def newest_version(self, resource: str) -> str:
        """Return the version that the server is at, for the price of one object."""
        page = self._document(resource, {"limit": "1"})
        return text(mapping(page.get("metadata")).get("resourceVersion"))

    def watch(
        self, wanted: Wanted, version: str, *, timeout_s: int, silence_s: float
    ) -> Iterator[Mapping[str, Json]]:
        """Yield the changes after `version` until the server ends the watch.

        silence_s: after so long without a byte the connection counts as dead. Raises ReadFailed,
        with the status of an ERROR event as well (410: the version is too old).
        """
        query = _selectors(wanted) | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(timeout_s),
        }
        path = self._path(wanted.resource)
        with self._response(path, query, silence_s, f"watch {self._names(wanted.resource)}") as got:
            for line in _lines(got, EVENT_BYTES_MAX):
                event = _event(line)
                if event.get("type") == "ERROR":
                    raise _refused_within(event, self._names(wanted.resource))
                yield event

    def log(self, pod: str, container: str, *, lines: int, since: str = "") -> Iterator[bytes]:
        """Yield the last lines of a log, each with its time before it, from the second of `since` on.

        Raises ReadFailed; 400 while the container has not begun, 404 when the pod is gone.
        """
        # limitBytes is not asked for: it keeps the begin of what tailLines chose, not its end.
        query = {"timestamps": "true", "tailLines": str(lines)}
        if container:
            query["container"] = container
        if since:
            query["sinceTime"] = since
        path = f"{self._path(PODS)}/{pod}/log"
        with self._response(path, query, LOG_S, f"read the log of pod {pod}") as got:
            yield from _lines(got, EVENT_BYTES_MAX)

    def cut(self) -> None:
        """End every request that runs, and refuse more."""
        with self._lock:
            self._is_cut = True
            for response in self._open:
                with suppress(OSError, ValueError, RuntimeError, HTTPError, AttributeError):
                    response.shutdown()

    def _document(self, resource: str, query: Mapping[str, str]) -> Mapping[str, Json]:
        doing = f"list {self._names(resource)}"
        with self._response(self._path(resource), query, LIST_S, doing) as got:
            data = bytearray()
            for piece in got.stream(PIECE_BYTES, decode_content=True):
                data += piece
                if len(data) > LIST_BYTES_MAX:
                    raise ReadFailed(f"Cannot {doing}: the reply is over {LIST_BYTES_MAX} bytes.")
        try:
            found = mapping(parse_json(bytes(data), bytes_max=LIST_BYTES_MAX, foreign=True))
        except ValueError as error:
            raise ReadFailed(f"Cannot {doing}: the reply is not JSON ({error}).") from error
        # A proxy's page, taken for an empty list, would show every pod as gone.
        if "items" not in found or not text(mapping(found.get("metadata")).get("resourceVersion")):
            begin = bytes(data[:WORDS_MAX]).decode("utf-8", "replace")
            raise ReadFailed(f"Cannot {doing}: the reply is not a list of the API: {begin!r}")
        return found

    @contextmanager
    def _response(
        self, path: str, query: Mapping[str, str], read_s: float, doing: str
    ) -> Iterator[BaseHTTPResponse]:
        """Ask, and translate errors, also while the body is read."""
        response: BaseHTTPResponse | None = None
        try:
            response = self._ask(path, query, read_s, doing)
            with self._lock:
                self._open.add(response)
                if self._is_cut:
                    raise ReadFailed(f"Cannot {doing}: the watcher was stopped.")
            yield response
        except ApiException as error:
            raise _refused(error, doing) from error
        except (HTTPError, OSError, ConfigException) as error:  # the last: a token is not there
            raise ReadFailed(f"Cannot {doing}: {str(error)[:WORDS_MAX]}.") from error
        finally:
            if response is not None:
                with self._lock:
                    self._open.discard(response)
                response.close()

    def _ask(
        self, path: str, query: Mapping[str, str], read_s: float, doing: str
    ) -> BaseHTTPResponse:
        try:
            return cast(
                BaseHTTPResponse,
                self._client.call_api(
                    path,
                    "GET",
                    query_params=list(query.items()),
                    header_params={"Accept": "application/json, */*"},
                    auth_settings=["BearerToken"],
                    _preload_content=False,
                    _request_timeout=(CONNECT_S, read_s),
                ),
            )
        except AttributeError as error:  # the client trips over a TLS error, which has no body
            why = str(error.__context__ or error)[:WORDS_MAX]
            raise ReadFailed(f"Cannot {doing}: {why}.") from error

    def _path(self, resource: str) -> str:
        return f"{_ROOTS[resource]}/namespaces/{self._namespace}/{resource}"

    def _names(self, resource: str) -> str:
        return f"{resource} in namespace {self._namespace}"


def _selectors(wanted: Wanted) -> dict[str, str]:
    given = {"labelSelector": wanted.labels, "fieldSelector": wanted.fields}
    return {name: value for name, value in given.items() if value}


def _lines(response: BaseHTTPResponse, line_bytes_max: int) -> Iterator[bytes]:
    """Yield whole lines; the end of the stream ends the last one."""
    half = b""
    for piece in response.stream(PIECE_BYTES, decode_content=True):
        *whole, half = (half + piece).split(b"\n")
        yield from (line for line in whole if line)
        if len(half) > line_bytes_max:
            raise ReadFailed(f"A line of the API server's reply is over {line_bytes_max} bytes.")
    if half:
        yield half


def _event(line: bytes) -> Mapping[str, Json]:
    try:
        event = mapping(parse_json(line, bytes_max=LIST_BYTES_MAX, foreign=True))
    except ValueError as error:
        raise ReadFailed(f"An event of the API server's is not JSON ({error}).") from error
    if not text(event.get("type")) or not isinstance(event.get("object"), dict):
        begin = line[:WORDS_MAX].decode("utf-8", "replace")
        raise ReadFailed(f"An event of the API server's is not an event: {begin!r}")
    return event


def _refused_within(event: Mapping[str, Json], names: str) -> ReadFailed:
    """Return the refusal in an ERROR event: a Status with a code and words."""
    status = mapping(event.get("object"))
    code = status.get("code")
    words = f"Cannot go on watching {names}: {code} {text(status.get('message'))[:WORDS_MAX]}"
    return ReadFailed(words, status=code if isinstance(code, int) else None)


def _refused(error: ApiException, doing: str) -> ReadFailed:
    words = text(error.body) or text(error.reason)
    with suppress(ValueError):
        words = text(mapping(parse_json(words, foreign=True)).get("message")) or words
    headers = {name.lower(): value for name, value in (error.headers or {}).items()}
    try:
        retry_after_s = float(headers.get("retry-after", 0))
    except ValueError:
        retry_after_s = 0.0
    return ReadFailed(
        f"Cannot {doing}: {error.status} {words[:WORDS_MAX]}",
        status=error.status or None,
        retry_after_s=retry_after_s,
    )
