"""Kueue as a gang meets it: a suspended Job, a Workload, admission, and eviction by suspension.

Who is admitted when is the test's to say (`admit`, `hold`, `evict`); no quota is computed here. What
is evicted is queued again, as Kueue does, and can be admitted again: under the same Job.
"""

from __future__ import annotations

import hashlib
from typing import Any

from tests.wings.kubernetes.double.answers import Json
from tests.wings.kubernetes.double.events import Events
from tests.wings.kubernetes.double.kinds import JOBSETS
from tests.wings.kubernetes.double.objects import Key, Objects, conditions, now_text

GROUP = "kueue.x-k8s.io"
QUEUE_LABEL = f"{GROUP}/queue-name"
PRIORITY_LABEL = f"{GROUP}/priority-class"
CLUSTER_QUEUE_LABEL = f"{GROUP}/cluster-queue-name"  # of pods, since 0.17
JOBS, WORKLOADS, QUEUES = "jobs.batch", f"workloads.{GROUP}", f"localqueues.{GROUP}"
CLUSTER_QUEUE = "cluster-queue"


class Kueue:
    """Its webhook (`mutate`), its controller (`sync`) and its decisions."""

    def __init__(self, objects: Objects, events: Events, namespace: str) -> None:
        self._objects, self._events, self._namespace = objects, events, namespace

    def add_queue(self, name: str) -> None:
        """Add a local queue, of the one cluster queue."""
        meta = {"name": name, "namespace": self._namespace}
        self._objects.create(
            QUEUES,
            {
                "apiVersion": f"{GROUP}/v1beta1",
                "kind": "LocalQueue",
                "metadata": meta,
                "spec": {"clusterQueue": CLUSTER_QUEUE},
                "status": {"conditions": [_condition("Active", "True", "Ready", "Can submit")]},
            },
        )

    def mutate(self, resource: str, new: Json) -> None:
        """Suspend what names a queue, as it is created."""
        if _is_queued(resource, new):
            new["spec"]["suspend"] = True

    def sync(self, resource: str, key: Key) -> None:
        """Keep a Workload for a Job or a JobSet that names a queue."""
        job = self._objects.find(resource, *key)
        if job is None or not _is_queued(resource, job):
            return
        queue = job["metadata"]["labels"][QUEUE_LABEL]
        found = self._objects.find(WORKLOADS, key[0], workload_of(job))
        if found is None:
            self._objects.create(WORKLOADS, self._workload(job, queue))
            words = f"Created Workload: {key[0]}/{workload_of(job)}"
            self._say(job, "CreatedWorkload", words)
            return
        done = conditions(job).keys() & {"Complete", "Completed", "Failed"}
        if done and "Finished" not in conditions(found):
            self._set(found, "Finished", "True", "JobFinished", "Job finished")
        if not done and not job["spec"].get("suspend") and "admission" not in found["status"]:
            self._objects.change(resource, job, lambda j: j["spec"].update(suspend=True))

    def admit(self, name: str, node_selector: dict[str, str] | None = None) -> None:
        """Give quota to a Job or JobSet: it runs. node_selector: of the flavour it got."""
        resource, job = self._job(name)
        workload = self._objects.get(WORKLOADS, self._namespace, workload_of(job))

        def admitted(found: Json) -> None:
            found["status"]["admission"] = {"clusterQueue": CLUSTER_QUEUE}
            words = f"Quota reserved in ClusterQueue {CLUSTER_QUEUE}"
            _put(found, _condition("QuotaReserved", "True", "QuotaReserved", words))
            words = "The workload is admitted"
            _put(found, _condition("Admitted", "True", "Admitted", words))

        def resumed(found: Json) -> None:
            if resource == JOBS:
                meta = found["spec"]["template"].setdefault("metadata", {})
                meta.setdefault("labels", {})[CLUSTER_QUEUE_LABEL] = CLUSTER_QUEUE
            if node_selector and resource == JOBS:
                spec = found["spec"]["template"]["spec"]
                spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **node_selector}
            found["spec"]["suspend"] = False

        self._objects.change(WORKLOADS, workload, admitted)
        self._objects.change(resource, job, resumed)
        self._say(job, "Started", f"Admitted by clusterQueue {CLUSTER_QUEUE}")

    def hold(self, name: str, why: str) -> None:
        """Say why a Job or JobSet is not admitted, in Kueue's words."""
        workload = self._objects.get(WORKLOADS, self._namespace, workload_of(self._job(name)[1]))
        self._set(workload, "QuotaReserved", "False", "Pending", why)

    def evict(self, name: str, reason: str = "Preempted") -> None:
        """Take the quota back: the Job is suspended, its pods are deleted, it queues again."""
        resource, job = self._job(name)
        workload = self._objects.get(WORKLOADS, self._namespace, workload_of(job))
        words = (
            "Preempted to accommodate a workload (UID: unknown, JobUID: unknown) due to "
            "prioritization in the ClusterQueue"
        )

        def evicted(found: Json) -> None:
            found["status"].pop("admission", None)
            _put(found, _condition("Evicted", "True", reason, words))
            if reason == "Preempted":
                why = "InClusterQueue"
                _put(found, _condition("Preempted", "True", why, words))
            for kind in ("QuotaReserved", "Admitted"):
                _put(found, _condition(kind, "False", "Pending", words))

        self._objects.change(WORKLOADS, workload, evicted)
        self._objects.change(resource, job, lambda j: j["spec"].update(suspend=True))
        self._say(job, "Stopped", words)

    def _job(self, name: str) -> tuple[str, Json]:
        for resource in (JOBSETS, JOBS):
            found = self._objects.find(resource, self._namespace, name)
            if found is not None:
                return resource, found
        raise AssertionError(f"Neither a JobSet nor a Job is called {name}.")

    def _workload(self, job: Json, queue: str) -> Json:
        spec = job["spec"]
        count, template = spec.get("parallelism", 1), spec.get("template")
        why = ("Pending", "The workload has no quota yet")
        if self._objects.find(QUEUES, self._namespace, queue) is None:
            why = ("Inadmissible", f"LocalQueue {queue} doesn't exist")
        meta = {"name": workload_of(job), "namespace": job["metadata"]["namespace"]}
        owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "controller": True}
        owner |= {"name": job["metadata"]["name"], "uid": job["metadata"]["uid"]}
        return {
            "apiVersion": f"{GROUP}/v1beta1",
            "kind": "Workload",
            "metadata": {**meta, "ownerReferences": [owner]},
            "spec": {
                "queueName": queue,
                "priorityClassName": job["metadata"]["labels"].get(PRIORITY_LABEL, ""),
                "active": True,
                "podSets": [{"name": "main", "count": count, "template": template}],
            },
            "status": {"conditions": [_condition("QuotaReserved", "False", *why)]},
        }

    def _set(self, workload: Json, kind: str, status: str, reason: str, words: str) -> None:
        made = _condition(kind, status, reason, words)
        self._objects.change(WORKLOADS, workload, lambda w: _put(w, made))

    def _say(self, job: Json, reason: str, words: str) -> None:
        source = f"batch/{job['kind'].lower()}-kueue-controller"
        self._events.write(job["kind"], job, reason, words, source=source)


def workload_of(job: Json) -> str:
    """Return the name of a job's Workload."""
    mark = hashlib.sha256(job["metadata"]["uid"].encode()).hexdigest()[:5]
    return f"{job['kind'].lower()}-{job['metadata']['name']}-{mark}"


def _is_queued(resource: str, found: Json) -> bool:
    """Whether it names a queue and stands for itself: a JobSet's Jobs do not."""
    meta = found["metadata"]
    labelled = QUEUE_LABEL in (meta.get("labels") or {})
    return labelled and resource in (JOBS, JOBSETS) and not meta.get("ownerReferences")


def _condition(kind: str, status: str, reason: str, message: str) -> Json:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": now_text(),
    }


def _put(found: Json, condition: Json) -> None:
    held: list[Any] = found["status"].setdefault("conditions", [])
    held[:] = [c for c in held if c["type"] != condition["type"]] + [condition]
