"""Single requests to an API server, as plain JSON: bounded tries, and errors in words.

A server that restarts, is overloaded or cannot be reached is asked again for a few seconds; what it
refuses is not. One that has let a request time out is left alone for SILENT_S: who asks meanwhile
gets the error at once, so that of all that a sensor's tick wants to know only one request waits.
Nothing here knows what a gang is. Watches and logs have their own way (`pod_watch`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus

import urllib3
from kubernetes.client import ApiClient
from kubernetes.client.exceptions import ApiException

from tracks_dagster.track.errors import GangUnreachable
from tracks_dagster.track.records import Json
from tracks_dagster.wings.kubernetes.effects.client import (
    CLIENT_ERRORS,
    CONNECT_S_MAX,
    READ_S_MAX,
    NoObject,
    as_object,
    explain,
    is_passing,
)
from tracks_dagster.wings.kubernetes.settings import ClusterSettings

Query = Sequence[tuple[str, str]]
Object = dict[str, Json]

WAITS_S = (0.5, 1.0, 2.0)  # before each further try
# After that there is no further try: a server that is out of reach answers slowly.
TRIES_S_MAX = 15.0
SILENT_S = 15.0
PAGE_OBJECTS = 500
PAGES_MAX = 200  # of one list: 100 000 objects
LISTS_MAX = 3  # how often a list is restarted whose pages expired
_JSON = {"Accept": "application/json", "Content-Type": "application/json"}
_MERGE = {**_JSON, "Content-Type": "application/merge-patch+json"}
_ANSWERS = {200: "object", 201: "object", 202: "object"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long one request may take. connect_s: TLS included; read_s: between two bytes of a reply;
    waits_s: before each further try."""

    connect_s: float = CONNECT_S_MAX
    read_s: float = READ_S_MAX
    waits_s: tuple[float, ...] = WAITS_S


# Of a sensor's tick, which Dagster ends after a minute, and which blocks a thread of the code server.
HURRIED = Patience(connect_s=3.0, read_s=10.0, waits_s=())


class Silence:
    """When the API server last let a request time out; shared by all that asks it in this process."""

    def __init__(self) -> None:
        self.since_s: float | None = None
        self.words = ""


class KubeRequests:
    """Asks one API server. Safe for several threads. sleep: waits between two tries; seconds: a
    steady clock; silence: shared with others that ask the same server."""

    def __init__(
        self,
        client: ApiClient,
        cluster: ClusterSettings,
        *,
        sleep: Callable[[float], None] = time.sleep,
        seconds: Callable[[], float] = time.monotonic,
        patience: Patience | None = None,
        silence: Silence | None = None,
    ) -> None:
        self._client, self._cluster = client, cluster
        self._sleep, self._seconds = sleep, seconds
        self._patience, self.silence = patience or Patience(), silence or Silence()

    def get(self, path: str, *, doing: str) -> Object | None:
        """Return the object as it is now, read from a quorum; None when there is none."""
        return self.ask("GET", path, doing=doing, none_at={HTTPStatus.NOT_FOUND})

    def list_all(self, path: str, query: Query, *, doing: str) -> list[Object]:
        """Return all that is chosen, in pages, as of one moment not before the call.

        No resource version is named: from 1.31 on the server answers that from its cache, once the
        cache is not older than the request. A version of 0 would be cheaper before, but might show a
        gang as missing that was started a moment ago.
        """
        for _ in range(LISTS_MAX):
            found = self._pages(path, query, doing)
            if found is not None:
                return found
        expired = ApiException(status=HTTPStatus.GONE, reason="the list expires between its pages")
        raise explain(expired, doing, self._cluster)

    def _pages(self, path: str, query: Query, doing: str) -> list[Object] | None:
        """Return the objects of all pages; None when the later ones have expired."""
        found: list[Object] = []
        after = ""
        for _ in range(PAGES_MAX):
            more = [("limit", str(PAGE_OBJECTS)), *([("continue", after)] if after else [])]
            page = self.ask("GET", path, [*query, *more], doing=doing, none_at={HTTPStatus.GONE})
            if page is None:
                return None
            if "items" not in page:
                none = NoObject(f"a {page.get('kind')}, which is not a list")
                raise explain(none, doing, self._cluster)
            found += page["items"] or []
            after = (page.get("metadata") or {}).get("continue") or ""
            if not after:
                break
        return found

    def ask(
        self,
        method: str,
        path: str,
        query: Query = (),
        *,
        doing: str,
        body: Mapping[str, Json] | None = None,
        none_at: Collection[int] = (),
    ) -> Object | None:
        """Return the answer's JSON; None for the statuses of `none_at`.

        doing: what is attempted, for the error ("start r-1/a01"). Raises GangError. A request that
        was repeated may have been obeyed the first time. A 200 whose body is not an object of the API
        (a proxy's page, half an answer) is not an answer: taken for an empty one it would show every
        gang as gone.
        """
        began_s = self._seconds()
        self._check_silence(doing, began_s)
        for wait_s in (*self._patience.waits_s, None):
            try:
                answer = self._once(method, path, query, body)
                self.silence.since_s = None
                return answer
            except CLIENT_ERRORS as error:
                status = error.status if isinstance(error, ApiException) else None
                if status in none_at:
                    return None
                is_late = self._seconds() - began_s > TRIES_S_MAX
                if wait_s is None or is_late or not is_passing(error):
                    explained = explain(error, doing, self._cluster)
                    if isinstance(error, urllib3.exceptions.TimeoutError):
                        words = str(explained).partition(": ")[2]
                        self.silence.since_s, self.silence.words = self._seconds(), words
                    raise explained from error
            self._sleep(wait_s)
        raise AssertionError("the last try returns or raises")

    def _check_silence(self, doing: str, now_s: float) -> None:
        """Raise GangUnreachable at once while the server is left alone."""
        since_s = self.silence.since_s
        if since_s is not None and 0 <= now_s - since_s < SILENT_S:
            raise GangUnreachable(
                f"Cannot {doing}: {self.silence.words} That was {now_s - since_s:.0f} s ago; it is "
                f"asked again {SILENT_S:g} s after it."
            )

    def _once(
        self, method: str, path: str, query: Query, body: Mapping[str, Json] | None
    ) -> Object:
        answer = self._client.call_api(
            path,
            method,
            query_params=list(query),
            header_params=dict(_MERGE if method == "PATCH" else _JSON),
            body=body,
            response_types_map=_ANSWERS,
            auth_settings=["BearerToken"],
            _return_http_data_only=True,
            _request_timeout=(self._patience.connect_s, self._patience.read_s),
        )
        return as_object(answer)
