"""Lines of a watcher for tests: short ways to say what a pod, a Job or an event looked like."""

from __future__ import annotations

from typing import Any

from tracks_dagster.reasons.classify import classify
from tracks_dagster.reasons.evidence import Evidence
from tracks_dagster.track.records import Json
from tracks_dagster.wings.kubernetes.gang_fold import GangFold
from tracks_dagster.wings.kubernetes.report import conditions, rank_ends
from tracks_dagster.wings.kubernetes.sightings import (
    INDEX,
    GangSeen,
    Line,
    event_line,
    job_line,
    pod_line,
)

TAINT = ("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
PREEMPTION = ("PreemptionByScheduler", "default-scheduler: preempting")


def at(second: int) -> str:
    return f"2026-01-31T02:{second // 60:02d}:{second % 60:02d}Z"


def text_at(second: int) -> str:
    return at(second).replace("Z", ".000000Z")


def plain(text: str) -> str:
    return text


def status(*states: Json, phase: str = "Running", **more: Any) -> Line:
    containers = [{"name": f"c{n}", "state": state} for n, state in enumerate(states)]
    return {"phase": phase, "containerStatuses": containers, **more}


def running(second: int = 0) -> Line:
    return {"running": {"startedAt": at(second)}}


def ended(code: int, second: int, reason: str = "Error") -> Line:
    state = {"exitCode": code, "reason": reason, "startedAt": at(0), "finishedAt": at(second)}
    return {"terminated": state}


def disrupted(why: tuple[str, str], second: int) -> Line:
    state = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": at(second)}
    return {**state, "reason": why[0], "message": why[1]}


def pod(index: int, version: int, state: Json, *, uid: str = "", change: str = "MODIFIED") -> Line:
    meta = {
        "uid": uid or f"uid-{index}",
        "name": f"gang-{index}-abcde",
        "resourceVersion": str(version),
        "creationTimestamp": at(version % 100),
        "labels": {INDEX: str(index)},
    }
    spec = {"nodeName": f"node{index}", "containers": [{"name": "c0"}]}
    given = {"metadata": meta, "spec": spec, "status": state}
    return pod_line(change, given, at=text_at(version % 100), clean=plain)


def job(version: int, *found: Json, suspend: bool = False) -> Line:
    meta = {"uid": "job", "name": "gang", "resourceVersion": str(version)}
    given = {"metadata": meta, "spec": {"suspend": suspend}, "status": {"conditions": list(found)}}
    return job_line("MODIFIED", given, at=text_at(version % 100), clean=plain)


def event(about: str, reason: str, message: str, *, number: int = 1, second: int = 5) -> Line:
    kind = "Job" if about == "job" else "Pod"
    name = {"job": "gang", "unseen": "gang-1-zzzzz"}.get(about, f"gang-{about[-1:]}-abcde")
    given = {
        "metadata": {"uid": f"event-{number}", "resourceVersion": str(5000 + number)},
        "involvedObject": {"kind": kind, "name": name, "uid": about},
        "reason": reason,
        "message": message,
        "type": "Warning",
        "firstTimestamp": at(second),
        "lastTimestamp": at(second),
    }
    return event_line(given, at=text_at(second), clean=plain)


def fold(*lines: Line) -> GangSeen:
    return GangFold(lines).seen()


def evidence(seen: GangSeen, *, pods: int = 1, ranks_per_pod: int = 1) -> Evidence:
    counts = {"pods": pods, "ranks_per_pod": ranks_per_pod}
    ranks, found = rank_ends(seen, **counts), conditions(seen, **counts)
    return Evidence(
        run_id="r", attempt_id=1, launch_id=None, ranks=ranks, conditions=found, placed=True
    )


def reason(seen: GangSeen, *, pods: int = 1, ranks_per_pod: int = 1) -> str:
    return classify(evidence(seen, pods=pods, ranks_per_pod=ranks_per_pod)).reason
