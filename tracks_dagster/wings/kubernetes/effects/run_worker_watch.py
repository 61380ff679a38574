"""Watches the pods of run workers, and reads their Jobs, events and logs. Decides nothing.

A pod may be gone within a second, so the process that launches runs has one thread that watches them.
It keeps a bounded history of each pod and reports every change; between two windows of the watch it
calls `between`, for what depends on time alone. What was not seen (the process was down) is read from
events and Jobs.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

from kubernetes.client import ApiClient
from kubernetes.watch.watch import iter_resp_lines

from tracks_dagster.reasons.kube_json import mapping, mappings, text
from tracks_dagster.track.errors import GangError, TracksError
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.records import Json
from tracks_dagster.wings.kubernetes.effects.client import CLIENT_ERRORS
from tracks_dagster.wings.kubernetes.effects.kube_requests import KubeRequests, Object
from tracks_dagster.wings.kubernetes.effects.log_tails import split_line
from tracks_dagster.wings.kubernetes.settings import ClusterSettings

# dagster-k8s labels so what its run launcher starts, and nothing else.
RUN_WORKERS = "app.kubernetes.io/component=run_worker"
LABEL_DAGSTER_RUN = "dagster/run-id"
LOG_LINES, LOG_BYTES_MAX = 100, 64 * 1024
CONNECT_S_MAX = 10.0
ANSWER_S_SLACK = 30.0  # beyond the time for which the API server keeps a watch open

WINDOW_S = 10  # of one watch; then `between` is called and the watch resumes without a gap
CHANGES_MAX = 50  # kept of one run's pods: the oldest is dropped
RUNS_MAX = 1000  # whose pods are remembered: the one that changed longest ago is dropped
BACKOFF_S = (1.0, 2.0, 5.0, 15.0, 60.0)  # after an error; the last one is repeated

Seen = Callable[[str, Sequence[Json]], None]  # dagster_run_id, what its pods went through
_log = logging.getLogger(__name__)


class RunWorkerWatch:
    """What was seen of run workers. seen: called at each change of a pod; between: every WINDOW_S.

    Both are called on the watch's thread; what they raise is logged.
    """

    def __init__(self, api: RunWorkerApi, *, seen: Seen, between: Callable[[], None]) -> None:
        self._api, self._seen, self._between = api, seen, between
        self._histories: OrderedDict[str, list[Json]] = OrderedDict()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to watch, once; returns at once."""
        with self._lock:
            if self._thread is None:
                name = "run-worker-watch"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Let the thread end within a window; it holds nothing that has to be given back."""
        self._over.set()

    def history(self, dagster_run_id: str) -> Sequence[Json]:
        """Return what that run's pods went through, the oldest first; of the newest pod only."""
        with self._lock:
            found = list(self._histories.get(dagster_run_id, ()))
        uid = _uid(found[-1]) if found else None
        return [each for each in found if _uid(each) == uid]

    def _run(self) -> None:
        failures = 0
        version = ""
        while not self._over.is_set():
            try:
                version = self._window(version or self._list())
                failures = 0
            except (*CLIENT_ERRORS, TracksError, ValueError) as error:
                version = ""
                wait_s = BACKOFF_S[min(failures, len(BACKOFF_S) - 1)]
                failures += 1
                _log.warning("Cannot watch the run workers; again in %g s: %s", wait_s, error)
                self._over.wait(wait_s)
            if not self._over.is_set():
                self._notify(self._between)

    def _list(self) -> str:
        """Take in the pods as they are; return from where to watch."""
        listed = self._api.pods()
        for pod in listed.pods:
            self._take(pod)
        return listed.version

    def _window(self, version: str) -> str:
        """Watch for a while; return the version to resume from, "" to list again."""
        for event in self._api.changes(version, seconds=WINDOW_S):
            if self._over.is_set():
                break
            changed = mapping(event.get("object"))
            if event.get("type") == "ERROR":
                return _listed_again(changed)
            version = text(mapping(changed.get("metadata")).get("resourceVersion")) or version
            if event.get("type") != "BOOKMARK":
                self._take(changed)
        return version

    def _take(self, pod: Json) -> None:
        """Remember how a pod is, unless that was known, and report it."""
        brief = _brief(pod)
        run_id = text(mapping(mapping(brief["metadata"]).get("labels")).get(LABEL_DAGSTER_RUN))
        if not run_id:
            return
        with self._lock:
            known = self._histories.setdefault(run_id, [])
            if known and known[-1] == brief:
                return
            known.append(brief)
            del known[:-CHANGES_MAX]
            self._histories.move_to_end(run_id)
            while len(self._histories) > RUNS_MAX:
                self._histories.popitem(last=False)
        self._notify(partial(self._seen, run_id, self.history(run_id)))

    def _notify(self, what: Callable[[], None]) -> None:
        try:
            what()
        except Exception:  # noqa: BLE001 - whatever Dagster's storage raises, the watch continues
            _log.exception(
                "Cannot act on what was seen of the run workers; at the next change again"
            )


def _listed_again(status: Mapping[str, Json]) -> str:
    """Return that there is no version to go on from; raise what is more than an old one (410)."""
    if status.get("code") != HTTPStatus.GONE:
        raise GangError(f"The API server ends the watch: {text(status.get('message'))}")
    return ""  # what was missed is in the list


def _uid(pod: Json) -> str:
    return text(mapping(mapping(pod).get("metadata")).get("uid"))


def _brief(pod: Json) -> dict[str, Json]:
    """Return the part of a pod that shows its state: the rest of it is large and never changes."""
    found = mapping(pod)
    meta, spec = mapping(found.get("metadata")), mapping(found.get("spec"))
    kept = ("name", "uid", "labels", "creationTimestamp", "deletionTimestamp")
    return {
        "metadata": {key: meta[key] for key in kept if key in meta},
        "spec": {key: spec[key] for key in ("nodeName", "schedulingGates") if key in spec},
        "status": dict(mapping(found.get("status"))),
    }


@dataclass(frozen=True, slots=True)
class ListedPods:
    """Pods as of one resource version."""

    pods: Sequence[Object]
    version: str


class RunWorkerApi:
    """Asks for the run workers of one namespace. Every method may raise GangError, `log` never does.

    Safe for several threads.
    """

    def __init__(self, client: ApiClient, cluster: ClusterSettings) -> None:
        self._client, self._cluster = client, cluster
        self._requests = KubeRequests(client, cluster)

    def job(self, name: str) -> Object | None:
        """Return the Job; None when there is none."""
        path = f"/apis/batch/v1/namespaces/{self._cluster.namespace}/jobs/{name}"
        return self._requests.get(path, doing=f"look at the run worker's Job {name}")

    def delete_job(self, name: str) -> None:
        """Delete the Job, its pods after it; nothing happens where there is none."""
        path = f"/apis/batch/v1/namespaces/{self._cluster.namespace}/jobs/{name}"
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        doing = f"delete the run worker's Job {name}"
        self._requests.ask("DELETE", path, doing=doing, body=body, none_at={HTTPStatus.NOT_FOUND})

    def pods_of(self, job_name: str) -> Sequence[Object]:
        """Return the pods of a Job that are there, the oldest first."""
        query = [("labelSelector", f"job-name={job_name}")]
        found = self._requests.list_all(
            self._path("pods"), query, doing=f"list the pods of {job_name}"
        )
        return sorted(
            found, key=lambda pod: text(mapping(pod["metadata"]).get("creationTimestamp"))
        )

    def events_of(self, name: str) -> Sequence[Object]:
        """Return the events of the object of that name, a pod or a Job, in no order."""
        query = [("fieldSelector", f"involvedObject.name={name}")]
        return self._requests.list_all(
            self._path("events"), query, doing=f"list the events of {name}"
        )

    def log(self, pod: str) -> str:
        """Return the end of a pod's log, "" where there is none to be had.

        With times, for a kubelet's message in the place of a log has none and is left out.
        """
        query = [
            *(("tailLines", str(LOG_LINES)), ("limitBytes", str(LOG_BYTES_MAX))),
            ("timestamps", "true"),
        ]
        try:
            answer = self._open(f"{self._path('pods')}/{pod}/log", query, ANSWER_S_SLACK)
            try:
                lines = map(split_line, bytes(answer.read(LOG_BYTES_MAX)).splitlines())
                return b"\n".join(words for at, words in lines if at).decode("utf-8", "replace")
            finally:
                answer.release_conn()
        except CLIENT_ERRORS:
            return ""

    def pods(self) -> ListedPods:
        """Return the pods of all run workers, and from where to watch them."""
        query = [("labelSelector", RUN_WORKERS)]
        answer = self._requests.ask("GET", self._path("pods"), query, doing="list the run workers")
        found = mapping(answer)
        version = text(mapping(found.get("metadata")).get("resourceVersion"))
        return ListedPods(pods=[*map(dict, mappings(found.get("items")))], version=version)

    def changes(self, version: str, *, seconds: int) -> Iterator[dict[str, Json]]:
        """Yield watch events of run workers' pods after `version`; ends by itself after `seconds`.

        Raises one of CLIENT_ERRORS; a version that is too old comes as an event of type ERROR or as
        ApiException 410.
        """
        query = [
            ("labelSelector", RUN_WORKERS),
            ("watch", "1"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", version),
            ("timeoutSeconds", str(seconds)),
        ]
        answer = self._open(self._path("pods"), query, seconds + ANSWER_S_SLACK)
        try:
            for line in iter_resp_lines(answer):
                yield dict(mapping(parse_json(line, foreign=True)))
        finally:
            answer.close()
            answer.release_conn()

    def _path(self, resource: str) -> str:
        return f"/api/v1/namespaces/{self._cluster.namespace}/{resource}"

    def _open(self, path: str, query: Sequence[tuple[str, str]], answer_s_max: float) -> Any:
        return self._client.call_api(
            path,
            "GET",
            query_params=list(query),
            header_params={"Accept": "*/*"},
            auth_settings=["BearerToken"],
            _return_http_data_only=True,
            _preload_content=False,
            _request_timeout=(CONNECT_S_MAX, answer_s_max),
        )
