"""The JobSet controller (jobset.x-k8s.io/v1alpha2): its Jobs, its headless Service, its end.

Not here: restarts (a failure policy with maxRestarts), success policies, start-up order, exclusive
placement. A Job that fails fails the JobSet, and the other Jobs that run are deleted.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.wings.kubernetes.double import deletion
from tests.wings.kubernetes.double.answers import ApiError, Json, invalid
from tests.wings.kubernetes.double.events import Events
from tests.wings.kubernetes.double.kinds import JOBSETS
from tests.wings.kubernetes.double.manifests import prepared
from tests.wings.kubernetes.double.objects import Key, Objects, conditions, copied, now_text

JOBS = "jobs.batch"
PREFIX = "jobset.sigs.k8s.io"
_UNKNOWN = ("failurePolicy", "successPolicy", "startupPolicy", "coordinator", "managedBy")


class JobSetController:
    """Runs on the cluster's one thread. admit: raises what a quota says of a new Job."""

    def __init__(
        self, objects: Objects, events: Events, admit: Callable[[str, Json], None]
    ) -> None:
        self._objects, self._events, self._admit = objects, events, admit

    def mutate(self, resource: str, new: Json) -> None:
        """Set defaults; refuse what the double does not do, rather than do something else."""
        if resource != JOBSETS:
            return
        spec, name = new["spec"], new["metadata"]["name"]
        for field in _UNKNOWN:
            wanted = spec.get(field)
            if wanted and wanted != {"maxRestarts": 0}:
                raise invalid("JobSet", name, f"spec.{field}: not in the double")
        network = spec.setdefault("network", {})
        network.setdefault("enableDNSHostnames", True)
        network.setdefault("subdomain", name)
        spec.setdefault("suspend", False)
        for replicated in spec["replicatedJobs"]:
            replicated.setdefault("replicas", 1)
            child = f"{name}-{replicated['name']}-{replicated['replicas'] - 1}"
            if len(child) + 8 > 63:
                why = f"JobSet name is too long, job names generated for this JobSet: {child}"
                raise invalid("JobSet", name, why)
        new["status"] = {"restarts": 0, "conditions": []}

    def sync(self, key: Key) -> None:
        """Bring one JobSet's Jobs and status to where they should be, one step."""
        found = self._objects.find(JOBSETS, *key)
        if found is None:
            return
        jobs = self._objects.owned(JOBS, found["metadata"]["uid"])
        if conditions(found).keys() & {"Completed", "Failed"}:
            self._clean(jobs)
            return
        self._objects.change(JOBSETS, found, lambda j: _count(j, jobs))
        failed = [job for job in jobs if "Failed" in conditions(job)]
        complete = [job for job in jobs if "Complete" in conditions(job)]
        if failed:
            words = "jobset failed due to one or more job failures"
            first = failed[0]["metadata"]["name"]
            self._close(found, "Failed", "FailedJobs", f"{words} (first failed job: {first})")
        elif jobs and len(complete) == sum(r["replicas"] for r in found["spec"]["replicatedJobs"]):
            self._close(found, "Completed", "AllJobsCompleted", "jobset completed successfully")
        else:
            self._make(found, jobs)

    def _make(self, found: Json, jobs: list[Json]) -> None:
        suspended = bool(found["spec"].get("suspend"))
        for job in jobs:
            if bool(job["spec"].get("suspend")) != suspended:
                self._objects.change(JOBS, job, lambda j: j["spec"].update(suspend=suspended))
        self._make_service(found)
        there = {job["metadata"]["name"] for job in jobs}
        for replicated in found["spec"]["replicatedJobs"]:
            for index in range(replicated["replicas"]):
                job = _job(found, replicated, index)
                if job["metadata"]["name"] not in there:
                    try:
                        self._admit(JOBS, job)
                        self._objects.create(JOBS, job)
                    except ApiError as error:
                        self._say(found, "JobCreationFailed", str(error), warning=True)
                        return

    def _make_service(self, found: Json) -> None:
        network, meta = found["spec"]["network"], found["metadata"]
        name, namespace = network["subdomain"], meta["namespace"]
        if network["enableDNSHostnames"] and not self._objects.find("services", namespace, name):
            self._objects.create(
                "services",
                {
                    "apiVersion": "v1",
                    "kind": "Service",
                    "metadata": {
                        "name": name,
                        "namespace": namespace,
                        "ownerReferences": [_owner(found)],
                    },
                    "spec": {
                        "clusterIP": "None",
                        "publishNotReadyAddresses": True,
                        "selector": {f"{PREFIX}/jobset-name": meta["name"]},
                    },
                },
            )

    def _close(self, found: Json, kind: str, reason: str, message: str) -> None:
        def close(j: Json) -> None:
            j["status"]["terminalState"] = kind
            j["status"]["conditions"].append(
                {
                    "type": kind,
                    "status": "True",
                    "reason": reason,
                    "message": message,
                    "lastTransitionTime": now_text(),
                }
            )

        self._objects.change(JOBSETS, found, close)
        self._say(found, reason, message, warning=kind == "Failed")

    def _clean(self, jobs: list[Json]) -> None:
        for job in jobs:
            running = not conditions(job).keys() & {"Complete", "Failed"}
            if running and "deletionTimestamp" not in job["metadata"]:
                deletion.delete_job(self._objects, job, "Foreground")

    def _say(self, found: Json, reason: str, words: str, *, warning: bool = False) -> None:
        self._events.write("JobSet", found, reason, words, warning=warning, source="jobset")


def _owner(found: Json) -> Json:
    meta = found["metadata"]
    owner = {"apiVersion": found["apiVersion"], "kind": "JobSet", "name": meta["name"]}
    return {**owner, "uid": meta["uid"], "controller": True, "blockOwnerDeletion": True}


def _job(found: Json, replicated: Json, index: int) -> Json:
    meta, template = found["metadata"], copied(replicated["template"])
    name = f"{meta['name']}-{replicated['name']}-{index}"
    labels = {
        f"{PREFIX}/jobset-name": meta["name"],
        f"{PREFIX}/jobset-uid": meta["uid"],
        f"{PREFIX}/replicatedjob-name": replicated["name"],
        f"{PREFIX}/replicatedjob-replicas": str(replicated["replicas"]),
        f"{PREFIX}/job-index": str(index),
        f"{PREFIX}/restart-attempt": "0",
    }
    own, spec = template.get("metadata") or {}, template["spec"]
    pod = spec["template"].setdefault("metadata", {})
    for part in (own, pod):
        for field in ("labels", "annotations"):
            part[field] = {**(part.get(field) or {}), **labels}
    if found["spec"]["network"]["enableDNSHostnames"]:
        spec["template"]["spec"]["subdomain"] = found["spec"]["network"]["subdomain"]
    spec["suspend"] = bool(found["spec"].get("suspend"))
    job = {"metadata": {**own, "name": name}, "spec": spec}
    made = prepared(JOBS, job, meta["namespace"])
    made["metadata"]["ownerReferences"] = [_owner(found)]
    return made


def _count(found: Json, jobs: list[Json]) -> None:
    result = []
    for replicated in found["spec"]["replicatedJobs"]:
        name = replicated["name"]
        mine = [j for j in jobs if j["metadata"]["labels"][f"{PREFIX}/replicatedjob-name"] == name]
        ended = [j for j in mine if conditions(j).keys() & {"Complete", "Failed"}]
        active = [j for j in mine if j not in ended and j["status"].get("active")]
        wanted = [j["spec"].get("parallelism", 1) for j in active]
        ready = [j for j, w in zip(active, wanted, strict=True) if j["status"].get("ready") == w]
        result.append(
            {
                "name": name,
                "ready": len(ready),
                "active": len(active),
                "succeeded": sum("Complete" in conditions(j) for j in ended),
                "failed": sum("Failed" in conditions(j) for j in ended),
                "suspended": sum(bool(j["spec"].get("suspend")) for j in mine),
            }
        )
    found["status"]["replicatedJobsStatus"] = result
