"""How an object goes: grace, finalizers, and what goes with its owner.

A Job that is deleted through batch/v1 without a propagation policy leaves its pods behind (orphans):
that is what a real API server does, for old clients' sake.
"""

from __future__ import annotations

from tests.wings.kubernetes.double import shapes
from tests.wings.kubernetes.double.answers import Json
from tests.wings.kubernetes.double.objects import Objects, key_of, now_text

JOBS = "jobs.batch"
FOREGROUND = "foregroundDeletion"
GRACE_S = 30


def delete_pod(objects: Objects, pod: Json, grace_s: int | None = None) -> Json:
    """Begin the end of a pod; one that never ran, has ended, or gets no grace goes at once."""
    grace = pod["spec"].get("terminationGracePeriodSeconds", GRACE_S)
    if grace_s is not None:
        grace = grace_s
    nothing_runs = shapes.is_terminal(pod) or not pod["spec"].get("nodeName")
    if nothing_runs:
        grace = 0
    before = pod["metadata"].get("deletionGracePeriodSeconds")
    if before is None or grace < before:
        objects.change("pods", pod, lambda p: shapes.deleted(p, grace))
    if grace == 0 and not nothing_runs:
        objects.change("pods", pod, lambda p: p["metadata"].pop("finalizers", None))
    let_go(objects, pod)
    return objects.find("pods", *key_of(pod)) or pod


def let_go(objects: Objects, pod: Json) -> None:
    """Remove the pod's object once its end is confirmed and nobody counts on it."""
    newest = objects.find("pods", *key_of(pod))
    if newest is None or newest["metadata"]["uid"] != pod["metadata"]["uid"]:
        return
    meta = newest["metadata"]
    if meta.get("deletionGracePeriodSeconds") == 0 and not meta.get("finalizers"):
        objects.remove("pods", newest)


def release(objects: Objects, pod: Json) -> None:
    """Take the Job controller's finalizer away: it has counted this pod."""
    newest = objects.find("pods", *key_of(pod))
    if newest is None or shapes.TRACKING not in newest["metadata"].get("finalizers", ()):
        return
    if newest["metadata"].get("deletionGracePeriodSeconds") == 0:
        objects.remove("pods", newest)  # the last state that watches see still names the finalizer
        return
    objects.change("pods", newest, lambda p: p["metadata"].pop("finalizers", None))


def delete(objects: Objects, resource: str, found: Json, propagation: str | None) -> Json | None:
    """Delete anything but a pod; returns what is left of it, None when it is gone."""
    if resource == JOBS:
        return delete_job(objects, found, propagation)
    if propagation == "Orphan":
        orphan(objects, found["metadata"]["uid"])
    if found["metadata"].get("finalizers"):
        return objects.change(resource, found, _marked)
    objects.remove(resource, found)
    return None


def delete_job(objects: Objects, job: Json, propagation: str | None) -> Json | None:
    """Delete a Job; returns what is left of it, None when it is gone."""
    if propagation == "Foreground":
        return objects.change(JOBS, job, _foreground)
    if propagation in (None, "Orphan"):
        orphan(objects, job["metadata"]["uid"])
    if set(job["metadata"].get("finalizers") or ()) - {FOREGROUND}:
        return objects.change(JOBS, job, _marked)
    objects.remove(JOBS, job)
    return None


def orphan(objects: Objects, uid: str) -> None:
    """Let what an object owns stay behind."""
    for resource in objects.kinds_owned(uid):
        for found in objects.owned(resource, uid):
            objects.change(resource, found, lambda o: _disown(o, uid))
            if resource == "pods":
                release(objects, found)


def collect(objects: Objects, uid: str) -> None:
    """Delete what an owner that is gone has left behind, if no other owner is there."""
    for resource in objects.kinds_owned(uid):
        for found in objects.owned(resource, uid):
            owners = found["metadata"].get("ownerReferences") or ()
            if any(objects.is_there(owner["uid"]) for owner in owners):
                continue
            if resource != "pods":
                delete(objects, resource, found, "Background")
                continue
            if not shapes.is_going(found):
                delete_pod(objects, found)
            release(objects, found)


def _disown(found: Json, uid: str) -> None:
    meta = found["metadata"]
    left = [owner for owner in meta.get("ownerReferences") or () if owner["uid"] != uid]
    meta.pop("ownerReferences", None)
    if left:
        meta["ownerReferences"] = left


def _marked(found: Json) -> None:
    found["metadata"].setdefault("deletionTimestamp", now_text())
    found["metadata"].setdefault("deletionGracePeriodSeconds", 0)


def _foreground(job: Json) -> None:
    meta = job["metadata"]
    meta.setdefault("deletionTimestamp", now_text())
    meta["deletionGracePeriodSeconds"] = 0
    meta["finalizers"] = [*(meta.get("finalizers") or ()), FOREGROUND]
