"""Events, as the control plane writes them: the same one again is a count, old ones go.

Two forms are about. Most components write the old one (count, first and last time, `source`); the
scheduler writes the new one, which core/v1 shows with null times, `eventTime`, and a `series` once it
is repeated.
"""

from __future__ import annotations

import random
from collections import deque
from datetime import UTC, datetime

from tests.wings.kubernetes.double.answers import ApiError, Json
from tests.wings.kubernetes.double.objects import Key, Objects, key_of, now_text

EVENTS_MAX = 2000
KUBELET, SCHEDULER, JOB_CONTROLLER = "kubelet", "default-scheduler", "job-controller"
_API = {"Pod": "v1", "Node": "v1", "Job": "batch/v1", "JobSet": "jobset.x-k8s.io/v1alpha2"}
_SCHEDULING = {"Scheduled": "Binding", "FailedScheduling": "Scheduling", "Preempted": "Preempting"}


class Events:
    """Writes events about objects."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._written: deque[tuple[tuple[str, str, str], Key]] = deque()
        self._keys: dict[tuple[str, str, str], Key] = {}

    def write(
        self,
        kind: str,
        about: Json,
        reason: str,
        message: str,
        *,
        warning: bool = False,
        source: str = KUBELET,
    ) -> None:
        """Write one, or count it on the newest of the same words. kind: Pod, Job or Node.

        source: the component that writes it.
        """
        meta = about["metadata"]
        same = (meta["uid"], reason, message)
        if same in self._keys:
            found = self._objects.find("events", *self._keys[same])
            if found is not None:
                self._objects.change("events", found, _again)
                return
        namespace = meta.get("namespace", "default")
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{meta['name']}.{random.getrandbits(60):016x}"},
            "involvedObject": {
                "apiVersion": _API.get(kind, "v1"),
                "kind": kind,
                "name": meta["name"],
                "uid": meta["uid"],
                **({"namespace": namespace} if "namespace" in meta else {}),
                "resourceVersion": meta.get("resourceVersion", ""),
            },
            "reason": reason,
            "message": message,
            "type": "Warning" if warning else "Normal",
            "reportingComponent": source,
            "reportingInstance": "",
        }
        event["metadata"]["namespace"] = namespace
        event |= _new_form(reason) if source == SCHEDULER else _old_form(about, source)
        self._keep(same, event)

    def _keep(self, same: tuple[str, str, str], event: Json) -> None:
        try:
            key = key_of(self._objects.create("events", event))
        except ApiError:
            return  # a name drawn twice; an event more or less decides nothing
        self._keys[same] = key
        self._written.append((same, key))
        if len(self._written) > EVENTS_MAX:
            first, key = self._written.popleft()
            if self._keys.get(first) == key:
                del self._keys[first]
            old = self._objects.find("events", *key)
            if old is not None:
                self._objects.remove("events", old)


def _old_form(about: Json, source: str) -> Json:
    host = {}
    if source == KUBELET:
        node = about.get("spec", {}).get("nodeName") or about["metadata"]["name"]
        host = {"host": node}
    return {
        "count": 1,
        "firstTimestamp": now_text(),
        "lastTimestamp": now_text(),
        "eventTime": None,
        "source": {"component": source, **host},
    }


def _new_form(reason: str) -> Json:
    return {
        "firstTimestamp": None,
        "lastTimestamp": None,
        "eventTime": _precise(),
        "action": _SCHEDULING.get(reason, reason),
        "source": {},
        "reportingInstance": "default-scheduler-node1",
    }


def _again(event: Json) -> None:
    if event.get("eventTime"):
        count = (event.get("series") or {}).get("count", 1) + 1
        event["series"] = {"count": count, "lastObservedTime": _precise()}
        return
    event["count"] += 1
    event["lastTimestamp"] = now_text()


def _precise() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
