"""The Job controller: pods of Jobs, their count, and the Job's end (batch/v1, Kubernetes 1.34).

Not here: pod failure policies beyond when a going pod counts, success policies, back-off between
replacements. A pod that is being deleted counts as failed at once, unless the Job says otherwise; so
a Job without retries whose node is lost has failed, and its zombie keeps it from saying so finally.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from tests.wings.kubernetes.double import deletion, shapes
from tests.wings.kubernetes.double.answers import ApiError, Json
from tests.wings.kubernetes.double.deletion import FOREGROUND
from tests.wings.kubernetes.double.events import JOB_CONTROLLER, Events
from tests.wings.kubernetes.double.objects import Key, Objects, conditions, copied, key_of, now_text

AGAIN_S = 0.5
INDEX = "batch.kubernetes.io/job-completion-index"
RESOURCE = "jobs.batch"


class JobController:
    """Runs on the cluster's one thread. admit: raises what a quota says of a new pod."""

    def __init__(
        self,
        objects: Objects,
        events: Events,
        *,
        later: Callable[[float, str, Key], None],
        admit: Callable[[str, Json], None],
    ) -> None:
        self._objects, self._events, self._later, self._admit = objects, events, later, admit

    def sync(self, key: Key) -> None:
        """Bring one Job's pods and status to where they should be, one step."""
        job = self._objects.find(RESOURCE, *key)
        if job is None:
            return
        pods = self._objects.owned("pods", job["metadata"]["uid"])
        if FOREGROUND in job["metadata"].get("finalizers", ()):
            self._end_foreground(job, pods)
            return
        counted = [pod for pod in pods if _counts(job, pod)]
        done = conditions(job).keys() & {"Complete", "Failed"}
        job = self._objects.change(RESOURCE, job, lambda j: _count(j, pods, counted)) or job
        for pod in counted:
            deletion.release(self._objects, pod)
        if done:
            self._collect_when_old(job)
            return
        self._judge(job)
        job = self._objects.find(RESOURCE, *key) or job
        if conditions(job).keys() & {"FailureTarget", "SuccessCriteriaMet"}:
            self._finish(job, pods)
        elif job["spec"].get("suspend"):
            self._suspend(job, pods)
        else:
            self._create_missing(job, pods)

    def _judge(self, job: Json) -> None:
        """Say that the Job will fail or succeed, once that is sure."""
        spec, status, has = job["spec"], job["status"], conditions(job)
        if has.keys() & {"FailureTarget", "SuccessCriteriaMet"}:
            return
        limit_s = spec.get("activeDeadlineSeconds")
        if status.get("failed", 0) > spec.get("backoffLimit", 6):
            why = ("BackoffLimitExceeded", "Job has reached the specified backoff limit")
            self._say(job, "FailureTarget", why)
        elif limit_s is not None and "startTime" in status and _age_s(status) >= limit_s:
            why = ("DeadlineExceeded", "Job was active longer than specified deadline")
            self._say(job, "FailureTarget", why)
        elif status.get("succeeded", 0) >= spec.get("completions", 1):
            why = ("CompletionsReached", "Reached expected number of succeeded pods")
            self._say(job, "SuccessCriteriaMet", why)

    def _finish(self, job: Json, pods: list[Json]) -> None:
        """End what still runs, and say the last word when nothing does."""
        active = [pod for pod in pods if not shapes.is_terminal(pod)]
        for pod in active:
            if not shapes.is_going(pod):
                deletion.delete_pod(self._objects, pod)
                name = pod["metadata"]["name"]
                self._say_event(job, "SuccessfulDelete", f"Deleted pod: {name}")
        if active:
            return
        has = conditions(job)
        target, final = ("FailureTarget", "Failed")
        if "SuccessCriteriaMet" in has:
            target, final = ("SuccessCriteriaMet", "Complete")
        why = (has[target]["reason"], has[target]["message"])
        self._say(job, final, why)
        reason = "Completed" if final == "Complete" else why[0]
        words = "Job completed" if final == "Complete" else why[1]
        self._say_event(job, reason, words, warning=final == "Failed")

    def _say(self, job: Json, kind: str, why: tuple[str, str]) -> None:
        self._objects.change(RESOURCE, job, lambda j: _add_condition(j, kind, why))

    def _suspend(self, job: Json, pods: list[Json]) -> None:
        for pod in pods:
            if not shapes.is_terminal(pod) and not shapes.is_going(pod):
                deletion.delete_pod(self._objects, pod)
        if not _is_suspended(job):
            self._objects.change(RESOURCE, job, _stop)
            self._say_event(job, "Suspended", "Job suspended")

    def _create_missing(self, job: Json, pods: list[Json]) -> None:
        if "startTime" not in job["status"] or _is_suspended(job):
            if _is_suspended(job):
                self._say_event(job, "Resumed", "Job resumed")
            self._objects.change(RESOURCE, job, _start)
            if (limit_s := job["spec"].get("activeDeadlineSeconds")) is not None:
                self._later(limit_s + AGAIN_S, RESOURCE, key_of(job))
        missing = _missing(job, pods)
        spec = _pod_spec(job) if missing else {}
        for index in missing:
            pod = _pod(job, index, spec)
            try:
                self._admit("pods", pod)
                made = self._objects.create("pods", pod)
            except ApiError as error:
                why = f"Error creating: {error}"
                self._say_event(job, "FailedCreate", why, warning=True)
                self._later(AGAIN_S, RESOURCE, key_of(job))
                return
            name = made["metadata"]["name"]
            self._say_event(job, "SuccessfulCreate", f"Created pod: {name}")

    def _say_event(self, job: Json, reason: str, words: str, *, warning: bool = False) -> None:
        self._events.write("Job", job, reason, words, warning=warning, source=JOB_CONTROLLER)

    def _end_foreground(self, job: Json, pods: list[Json]) -> None:
        for pod in pods:
            if not shapes.is_going(pod):
                deletion.delete_pod(self._objects, pod)
            deletion.release(self._objects, pod)
        if not self._objects.owned("pods", job["metadata"]["uid"]):
            self._objects.remove(RESOURCE, job)

    def _collect_when_old(self, job: Json) -> None:
        ttl_s = job["spec"].get("ttlSecondsAfterFinished")
        if ttl_s is None:
            return
        final = next(c for k, c in conditions(job).items() if k in ("Complete", "Failed"))
        left_s = ttl_s - _seconds_since(final["lastTransitionTime"])
        if left_s > 0:
            self._later(left_s + 0.1, RESOURCE, key_of(job))
        else:
            deletion.delete_job(self._objects, job, "Foreground")


def _counts(job: Json, pod: Json) -> bool:
    """Whether the pod has to be counted now: it ended, or it goes (if going is enough)."""
    if shapes.TRACKING not in pod["metadata"].get("finalizers", ()):
        return False
    patient = job["spec"].get("podReplacementPolicy") == "Failed" or job["spec"].get(
        "podFailurePolicy"
    )
    return shapes.is_terminal(pod) or (shapes.is_going(pod) and not patient)


def _count(job: Json, pods: list[Json], counted: list[Json]) -> None:
    status = job["status"]
    for pod in counted:
        if pod["status"]["phase"] == "Succeeded":
            status["succeeded"] = status.get("succeeded", 0) + 1
            if job["spec"].get("completionMode") == "Indexed":
                _add_index(status, _index(pod))
        elif shapes.is_terminal(pod) or not job["spec"].get("suspend"):
            status["failed"] = status.get("failed", 0) + 1  # a suspension's own deletions are none
    living = [pod for pod in pods if not shapes.is_terminal(pod)]
    active = [pod for pod in living if not shapes.is_going(pod)]
    ready = [p for p in active if conditions(p).get("Ready", {}).get("status") == "True"]
    status["ready"], status["terminating"] = len(ready), len(living) - len(active)
    status["uncountedTerminatedPods"] = {}
    status.pop("active", None)
    if active:
        status["active"] = len(active)


def _add_index(status: Json, index: int) -> None:
    done = {int(i) for i in status.get("completedIndexes", "").split(",") if i} | {index}
    status["completedIndexes"] = ",".join(str(i) for i in sorted(done))


def _add_condition(job: Json, kind: str, why: tuple[str, str], *, status: str = "True") -> None:
    made: dict[str, Any] = {
        "type": kind,
        "status": status,
        "lastProbeTime": now_text(),
        "lastTransitionTime": now_text(),
        "reason": why[0],
        "message": why[1],
    }
    job["status"].setdefault("conditions", []).append(made)
    if kind == "Complete":
        job["status"]["completionTime"] = now_text()


def _is_suspended(job: Json) -> bool:
    return bool(conditions(job).get("Suspended", {}).get("status") == "True")


def _start(job: Json) -> None:
    job["status"]["startTime"] = now_text()
    if _is_suspended(job):
        _drop_condition(job, "Suspended")
        _add_condition(job, "Suspended", ("JobResumed", "Job resumed"), status="False")


def _stop(job: Json) -> None:
    _drop_condition(job, "Suspended")
    _add_condition(job, "Suspended", ("JobSuspended", "Job suspended"))
    job["status"].pop("startTime", None)


def _drop_condition(job: Json, kind: str) -> None:
    held = job["status"].get("conditions") or ()
    job["status"]["conditions"] = [c for c in held if c["type"] != kind]


def _missing(job: Json, pods: list[Json]) -> list[int]:
    """Return the indexes that want a pod; for a Job without indexes, one 0 a pod."""
    spec = job["spec"]
    waiting = [p for p in pods if not shapes.is_terminal(p) and not _counted_out(p)]
    room = spec.get("parallelism", 1) - len(waiting)
    if spec.get("completionMode") != "Indexed":
        left = spec.get("completions", 1) - job["status"].get("succeeded", 0) - len(waiting)
        return [0] * max(0, min(room, left))
    done = {int(i) for i in job["status"].get("completedIndexes", "").split(",") if i}
    taken = done | {_index(pod) for pod in waiting}
    return [i for i in range(spec["completions"]) if i not in taken][: max(0, room)]


def _counted_out(pod: Json) -> bool:
    """A pod that goes and was counted may be replaced, though it still runs."""
    return shapes.is_going(pod) and shapes.TRACKING not in pod["metadata"].get("finalizers", ())


def _index(pod: Json) -> int:
    return int(pod["metadata"]["labels"].get(INDEX, "0"))


def _pod_spec(job: Json) -> Json:
    """Return the spec that the pods of a Job share: values, which nobody edits in place."""
    spec: Json = copied(job["spec"]["template"]["spec"])
    if job["spec"].get("completionMode") == "Indexed":
        path = {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX}']"}}
        for container in spec["containers"]:
            variable = {"name": "JOB_COMPLETION_INDEX", "valueFrom": path}
            container["env"] = [*(container.get("env") or ()), variable]
    return spec


def _pod(job: Json, index: int, shared: Json) -> Json:
    """Return the pod of an index, as the controller makes it from the template."""
    meta = copied(job["spec"]["template"].get("metadata") or {})
    name, indexed = job["metadata"]["name"], job["spec"].get("completionMode") == "Indexed"
    meta["generateName"] = f"{name}-{index}-" if indexed else f"{name}-"
    meta["namespace"] = job["metadata"]["namespace"]
    meta["finalizers"] = [shapes.TRACKING]
    meta["ownerReferences"] = [
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": name,
            "uid": job["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    spec = dict(shared)
    if indexed:
        meta["labels"] = {**(meta.get("labels") or {}), INDEX: str(index)}
        meta["annotations"] = {**(meta.get("annotations") or {}), INDEX: str(index)}
        spec["hostname"] = f"{name}-{index}"
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
    shapes.born(pod)
    return pod


def _age_s(status: Json) -> float:
    return _seconds_since(status["startTime"])


def _seconds_since(text: str) -> float:
    return time.time() - datetime.fromisoformat(text).timestamp()
