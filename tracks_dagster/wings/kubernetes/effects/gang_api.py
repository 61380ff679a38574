"""The requests by which a gang is made, looked at and ended: which objects, by which names and labels.

A gang's Service and its Job (or JobSet) have one name, its pods the same labels. A JobSet's own Job
carries them too, so one list of Jobs shows the gangs of both kinds. Nothing is decided here.
"""

from __future__ import annotations

from http import HTTPStatus

from tracks_dagster.reasons.kube_json import mapping, mappings, text
from tracks_dagster.track.names import LABEL_APP, MANAGED_BY, AttemptRef
from tracks_dagster.track.records import Json
from tracks_dagster.wings.kubernetes.effects.homes import Home
from tracks_dagster.wings.kubernetes.effects.kube_requests import KubeRequests, Object, Query
from tracks_dagster.wings.kubernetes.job_names import ANNOTATION_ATTEMPT, gang_labels, job_name
from tracks_dagster.wings.kubernetes.settings import JOB, JOB_SET

EVENTS_MAX = 50  # of one object; the API server forgets them within an hour
_PATHS = {JOB: "/apis/batch/v1/{}/jobs", JOB_SET: "/apis/jobset.x-k8s.io/v1alpha2/{}/jobsets"}
_DELETE = {"apiVersion": "v1", "kind": "DeleteOptions"}
_NOT_IT = {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT}
_OURS = [("labelSelector", f"{LABEL_APP}={MANAGED_BY}")]


class GangApi:
    """Asks for gangs in one namespace; another home's are not seen, but by `job_of_anybody`.

    Every method may raise GangError, and StoreUnavailable the first one that has to know the home.
    """

    def __init__(self, requests: KubeRequests, namespace: str, home: Home) -> None:
        self._requests, self.home = requests, home
        self._place = f"namespaces/{namespace}"

    def create_service(self, service: Object, *, doing: str) -> None:
        """Create it; one that is there already stays as it is."""
        path = self._core("services")
        self._requests.ask("POST", path, doing=doing, body=service, none_at={HTTPStatus.CONFLICT})

    def create_job(self, job: Object, *, doing: str) -> Object | None:
        """Create it and return it; None when there is one of that name, or another one contends."""
        path = self._jobs(text(job["kind"]))
        return self._requests.ask(
            "POST", path, doing=doing, body=job, none_at={HTTPStatus.CONFLICT}
        )

    def own_service(self, job: Object, *, doing: str) -> None:
        """Make the Service's Job (or JobSet) its owner, so that both are deleted together."""
        meta = mapping(job.get("metadata"))
        owner = {
            "apiVersion": job["apiVersion"],
            "kind": job["kind"],
            "name": meta["name"],
            "uid": meta["uid"],
        }
        path = f"{self._core('services')}/{meta['name']}"
        body = {"metadata": {"ownerReferences": [owner]}}
        self._requests.ask("PATCH", path, doing=doing, body=body, none_at={HTTPStatus.NOT_FOUND})

    def job(self, ref: AttemptRef, kind: str) -> Object | None:
        """Return the gang's Job (or JobSet); None when there is none, or it is another home's."""
        found = self.job_of_anybody(ref, kind)
        return found if found is not None and self.home.owns(found) else None

    def job_of_anybody(self, ref: AttemptRef, kind: str) -> Object | None:
        """Return what has the name of the gang's Job (or JobSet), whosever it is."""
        path = f"{self._jobs(kind)}/{job_name(ref)}"
        return self._requests.get(path, doing=f"look at {ref.key}")

    def jobs(self) -> list[Object]:
        """Return every Job of ours, those of JobSets too."""
        return self._own(self._jobs(JOB), _OURS, "list the gangs")

    def services(self) -> list[Object]:
        """Return every Service of ours."""
        return self._own(self._core("services"), _OURS, "list the gangs' Services")

    def delete_job(self, name: str, kind: str, *, uid: str, doing: str) -> None:
        """Delete exactly that Job (or JobSet), its pods after it; one of another uid stays."""
        body = {**_DELETE, "propagationPolicy": "Background", "preconditions": {"uid": uid}}
        path = f"{self._jobs(kind)}/{name}"
        self._requests.ask("DELETE", path, doing=doing, body=body, none_at=_NOT_IT)

    def delete_service(self, name: str, *, uid: str = "", doing: str) -> None:
        """Delete a Service, if it is there; uid: only that one."""
        body = {**_DELETE, **({"preconditions": {"uid": uid}} if uid else {})}
        path = f"{self._core('services')}/{name}"
        self._requests.ask("DELETE", path, doing=doing, body=body, none_at=_NOT_IT)

    def pods(self, ref: AttemptRef) -> list[Object]:
        """Return the pods of a gang that are there."""
        doing = f"list the pods of {ref.key}"
        return self._own(self._core("pods"), _of(ref), doing)

    def delete_pods(self, ref: AttemptRef, *, grace_s: int) -> None:
        """Let the kubelets end all pods of a gang: SIGTERM, and SIGKILL `grace_s` (1 or more) later.

        One request. A pod that is ending keeps its earlier end. 0 would only make the
        API server forget pods whose processes live.
        """
        body = {**_DELETE, "gracePeriodSeconds": grace_s}
        self._requests.ask(
            "DELETE",
            self._core("pods"),
            _of(ref),
            doing=f"end the pods of {ref.key}",
            body=body,
        )

    def events_of(self, uid: str) -> list[Object]:
        """Return the newest events of one object, of the last page only; at most EVENTS_MAX."""
        chosen = [("fieldSelector", f"involvedObject.uid={uid}")]
        found = self._requests.list_all(self._core("events"), chosen, doing="read events")
        return sorted(found, key=_event_at)[-EVENTS_MAX:]

    def node(self, name: str) -> Object | None:
        """Return a node; None when there is none of that name."""
        return self._requests.get(f"/api/v1/nodes/{name}", doing=f"look at node {name}")

    def _own(self, path: str, chosen: Query, doing: str) -> list[Object]:
        return [o for o in self._requests.list_all(path, chosen, doing=doing) if self.home.owns(o)]

    def _core(self, resource: str) -> str:
        return f"/api/v1/{self._place}/{resource}"

    def _jobs(self, kind: str) -> str:
        return _PATHS[kind].format(self._place)


def is_of(job: Object, ref: AttemptRef) -> bool:
    """Whether an object is marked as exactly this attempt's."""
    return attempt_of(job) == ref.key


def attempt_of(found: Object) -> str:
    """Return the key of the attempt that an object is marked with, empty where it is not."""
    return text(mapping(mapping(found.get("metadata")).get("annotations")).get(ANNOTATION_ATTEMPT))


def uid_of(found: Object) -> str:
    """Return an object's uid, which no later one of its name has."""
    return text(mapping(found.get("metadata")).get("uid"))


def gang_name(job: Object) -> tuple[str, str, str]:
    """Return what to delete for a listed Job: its kind, name and uid, or those of the JobSet that it
    is of."""
    meta = mapping(job.get("metadata"))
    for owner in mappings(meta.get("ownerReferences")):
        if owner.get("kind") == JOB_SET:
            return JOB_SET, text(owner.get("name")), text(owner.get("uid"))
    return JOB, text(meta.get("name")), uid_of(job)


def _of(ref: AttemptRef) -> list[tuple[str, str]]:
    labels = gang_labels(ref)
    return [("labelSelector", ",".join(f"{key}={value}" for key, value in labels.items()))]


def _event_at(event: Object) -> str:
    newest: Json = event.get("lastTimestamp") or event.get("eventTime")
    return text(newest or mapping(event.get("metadata")).get("creationTimestamp"))
