"""The requests by which run workers are looked at: Jobs, pods, events, logs. Decides nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from kubernetes.client import ApiClient
from kubernetes.watch.watch import iter_resp_lines

from tracks_dagster.kubernetes.effects.api.client import CLIENT_ERRORS
from tracks_dagster.kubernetes.effects.api.kube_requests import KubeRequests, Object
from tracks_dagster.kubernetes.effects.log_tails import split_line
from tracks_dagster.kubernetes.settings.cluster import ClusterSettings
from tracks_dagster.reasons.kube_json import mapping, mappings, text
from tracks_dagster.track.records import Json

# dagster-k8s labels so what its run launcher starts, and nothing else.
RUN_WORKERS = "app.kubernetes.io/component=run_worker"
LABEL_DAGSTER_RUN = "dagster/run-id"
LOG_LINES, LOG_BYTES_MAX = 100, 64 * 1024
CONNECT_S_MAX = 10.0
ANSWER_S_SLACK = 30.0  # beyond what the API server was told to keep a watch open


@dataclass(frozen=True, slots=True)
class Listed:
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

        With times, for what a kubelet says in the place of a log has none and is left out.
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

    def pods(self) -> Listed:
        """Return the pods of all run workers, and from where to watch them."""
        query = [("labelSelector", RUN_WORKERS)]
        answer = self._requests.ask("GET", self._path("pods"), query, doing="list the run workers")
        found = mapping(answer)
        version = text(mapping(found.get("metadata")).get("resourceVersion"))
        return Listed(pods=[*map(dict, mappings(found.get("items")))], version=version)

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
                yield dict(mapping(json.loads(line)))
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
