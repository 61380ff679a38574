"""What Kubernetes shows of a Dagster run's worker: whether it lives, and why it ended. Pure.

A run worker is one pod of one Job. Its end is judged by `classify` like a rank's, on what the control
plane reports of the pod and how its container ended. A worker that ends is not an attempt's end: the
gang continues and is adopted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum, auto

from tracks_dagster.reasons.classify import classify
from tracks_dagster.reasons.evidence import Condition, Evidence, RankEnd, Verdict
from tracks_dagster.reasons.kube_json import mapping, mappings, text, time_text
from tracks_dagster.reasons.pods import PodEvidence, read_pod
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Json, parse_time
from tracks_dagster.wings.kubernetes.pod_starts import (
    CONFIG,
    IMAGE,
    MOUNT,
    QUOTA,
    UNSCHEDULABLE,
    StartProblem,
)

_R = TerminationReason

# A kubelet that answers removes a pod when its grace is over; so long after that, the node is lost.
LOST_AFTER_S = 30.0
LINES_MAX = 8  # of the pod, in a message
_PODS_END = frozenset({"Succeeded", "Failed"})
_JOBS_END = frozenset({"Complete", "Failed"})
# Events with the reason why a pod ended, for those whose condition nobody saw. A taint manager that
# changes its mind writes one too, with "Cancelling deletion".
_EVENTS = frozenset({"Preempted", "Evicted", "TaintManagerEviction", "OOMKilling", "NodeShutdown"})
_TAKEN_BACK = "Cancelling deletion"
_NODE_LOST = frozenset({"DeletionByTaintManager", "DeletionByPodGC"})

_START_REASONS = {
    IMAGE: _R.IMAGE_PULL,
    UNSCHEDULABLE: _R.SCHEDULING_TIMEOUT,
    QUOTA: _R.SCHEDULING_TIMEOUT,
    CONFIG: _R.CONFIG_ERROR,
    MOUNT: _R.STORAGE_IO,
}


class Standing(Enum):
    """The state of a run worker."""

    WAITS = auto()  # no container of it has run
    RUNS = auto()
    ENDING = auto()  # it was asked to end, and its grace is not over
    ENDED = auto()
    GONE = auto()  # there is neither Job nor pod


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEnd:
    """Why a run worker ended. reason: a termination reason's value; words: for people."""

    reason: str
    words: str


def standing(job: Json, pods: Sequence[Json], now: datetime) -> Standing:
    """Return the worker's state; job: {} or None where there is none; pods: as they are."""
    found = [_standing(mapping(pod), now) for pod in pods]
    for each in (Standing.RUNS, Standing.WAITS, Standing.ENDING, Standing.ENDED):
        if each in found:
            return each
    if not mapping(job):
        return Standing.GONE
    conditions = mappings(mapping(mapping(job).get("status")).get("conditions"))
    has_ended = any(c.get("type") in _JOBS_END and c.get("status") == "True" for c in conditions)
    return Standing.ENDED if has_ended else Standing.WAITS


def has_not_begun(pod: Json) -> bool:
    """Whether no container of the pod was ever seen to run."""
    return read_pod([pod], rank=0).end is None


def worker_end(history: Sequence[Json], events: Sequence[Json], log_tail: str = "") -> WorkerEnd:
    """Return why the worker ended whose pod went through `history`, oldest first; it may be empty.

    events: of the pod and its Job; they count where the history has no condition. log_tail: read
    only where nothing but an exit code is known: a worker's log is full of other processes' ends.
    """
    seen = read_pod(history, rank=0)
    conditions = seen.conditions or tuple(_conditions(events))
    verdict = _judge(seen.end, conditions)
    if verdict.reason == _R.UNKNOWN and seen.end is not None and seen.end.exit_code:
        verdict = _judge(replace(seen.end, log_tail=log_tail), conditions)
    reason, lines = (
        verdict.reason,
        [line.replace("rank 0", "its container") for line in verdict.lines],
    )
    exited_0 = seen.end is not None and seen.end.exit_code == 0
    if reason == _R.COMPLETED or (reason == _R.UNKNOWN and exited_0):
        # A worker that ends well has first written its run's end.
        reason = _R.UNKNOWN.value
        lines = ["its container ended with exit code 0 before the Dagster run had ended"]
    if not history:
        lines = ["nobody saw its pod end"] if reason == _R.UNKNOWN else lines
    return WorkerEnd(reason=reason, words=_describe(reason, lines, history, seen))


def has_disruption(history: Sequence[Json]) -> bool:
    """Whether a control plane ends the pod, or its container was OOM-killed."""
    seen = read_pod(history, rank=0)
    if seen.end is not None and seen.end.oom_killed:
        return True
    return any(
        each.type in ("DisruptionTarget", "TerminationTarget", "Pod") for each in seen.conditions
    )


def never_started(problem: StartProblem) -> WorkerEnd:
    """Return the end of a worker that is given up before it began."""
    reason = _START_REASONS[problem.reason].value
    words = f"The run worker cannot start ({reason}): {problem.api_reason}: {problem.message}"
    return WorkerEnd(reason=reason, words=words)


def _judge(end: RankEnd | None, conditions: tuple[Condition, ...]) -> Verdict:
    ranks = () if end is None else (end,)
    return classify(
        Evidence(run_id="", attempt_id=0, launch_id=None, ranks=ranks, conditions=conditions)
    )


def _standing(pod: Json, now: datetime) -> Standing:
    meta, status = mapping(mapping(pod).get("metadata")), mapping(mapping(pod).get("status"))
    if status.get("phase") in _PODS_END:
        return Standing.ENDED
    deadline = time_text(meta.get("deletionTimestamp"))
    if deadline is not None:
        lost = any(c.get("reason") in _NODE_LOST for c in mappings(status.get("conditions")))
        is_over = now > parse_time(deadline) + timedelta(seconds=LOST_AFTER_S)
        return Standing.ENDED if lost or is_over else Standing.ENDING
    return Standing.WAITS if status.get("phase") in (None, "", "Pending") else Standing.RUNS


def _conditions(events: Sequence[Json]) -> list[Condition]:
    """Return the reasons of a pod's end by its events."""
    return [
        Condition(
            type="Event",
            reason=text(each.get("reason")),
            message=text(each.get("message")),
            at=None,
            source="kubernetes",
            rank=0,
        )
        for each in mappings(list(events))
        if each.get("reason") in _EVENTS and _TAKEN_BACK not in text(each.get("message"))
    ]


def _describe(reason: str, lines: Sequence[str], history: Sequence[Json], seen: PodEvidence) -> str:
    """Return the words for an end: the verdict, then the pod's own lines."""
    what = f"The run worker ended ({reason}): {'; '.join(lines)}."
    pod = mapping(history[-1]) if history else {}
    meta, spec = mapping(pod.get("metadata")), mapping(pod.get("spec"))
    lines_found = [
        f"Pod {text(meta.get('name')) or 'unknown'} on node {text(spec.get('nodeName')) or '?'}"
    ]
    lines_found += [f"{c.type}/{c.reason}: {c.message}" for c in seen.conditions]
    if seen.end is not None and seen.end.has_ended:
        killed = ", OOMKilled" if seen.end.oom_killed else ""
        lines_found.append(f"exit code {seen.end.exit_code}{killed}, at {seen.end.ended_at}")
    shown = lines_found[:LINES_MAX] if history else []
    return "\n".join([what, *shown, "The attempt's gang, if there is one, goes on and is adopted."])
