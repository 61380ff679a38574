"""Single requests to an API server, as plain JSON: bounded tries, and errors in words.

A server that restarts, is overloaded or cannot be reached is asked again for a few seconds; what it
refuses is not. Nothing here knows what a gang is. Watches and logs have their own way (`pod_watch`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from http import HTTPStatus

from kubernetes.client import ApiClient
from kubernetes.client.exceptions import ApiException

from tracks_dagster.adapters.kubernetes.client import (
    CLIENT_ERRORS,
    NoObject,
    as_object,
    explain,
    is_passing,
)
from tracks_dagster.core.cluster import ClusterSettings
from tracks_dagster.core.records import Json

Query = Sequence[tuple[str, str]]
Object = dict[str, Json]

WAITS_S = (0.5, 1.0, 2.0)  # before each further try
TRIES_S_MAX = (
    15.0  # after that there is no further one: a server that is out of reach answers slowly
)
PAGE_OBJECTS = 500
PAGES_MAX = 200  # of one list: 100 000 objects
LISTS_MAX = 3  # a list whose pages expire in between is begun anew so often
_JSON = {"Accept": "application/json", "Content-Type": "application/json"}
_MERGE = {**_JSON, "Content-Type": "application/merge-patch+json"}
_ANSWERS = {200: "object", 201: "object", 202: "object"}


class KubeRequests:
    """Asks one API server. Safe for several threads. sleep: waits between two tries; seconds: a
    steady clock."""

    def __init__(
        self,
        client: ApiClient,
        cluster: ClusterSettings,
        *,
        sleep: Callable[[float], None] = time.sleep,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._cluster = client, cluster
        self._sleep, self._seconds = sleep, seconds

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
                none = NoObject(f"a {page.get('kind')}, which is no list")
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
        was repeated may have been obeyed the first time. A 200 whose body is no object of the API (a
        proxy's page, half an answer) is no answer: taken for an empty one it would show every gang as
        gone.
        """
        began_s = self._seconds()
        for wait_s in (*WAITS_S, None):
            try:
                return self._once(method, path, query, body)
            except CLIENT_ERRORS as error:
                status = error.status if isinstance(error, ApiException) else None
                if status in none_at:
                    return None
                is_late = self._seconds() - began_s > TRIES_S_MAX
                if wait_s is None or is_late or not is_passing(error):
                    raise explain(error, doing, self._cluster) from error
            self._sleep(wait_s)
        raise AssertionError("the last try returns or raises")

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
        )
        return as_object(answer)
