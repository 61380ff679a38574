"""When a gang on Kubernetes that does not come up is given up. Pure.

All pods get a node within one budget, and from then on their containers run within a second one, image
pull included. Where some have a node and others have none, a third and shorter one holds: devices that
wait for the rest of their gang train nothing, and a retry asks for all of them again. What can never
get better ends the wait at once. A Job that a queue suspends waits as long as the queue wants: its
budget begins when it is admitted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from tracks_dagster.reasons.evidence import CANNOT_START, Condition
from tracks_dagster.reasons.kube_json import mapping, mappings, time_of
from tracks_dagster.track.records import Json, format_time
from tracks_dagster.wings.kubernetes.pod_starts import IMAGE, StartProblem, why_not_started
from tracks_dagster.wings.kubernetes.sightings import EventSeen, GangSeen, JobStory, PodStory

TIMED_OUT = "StartTimeout"  # its reason where none is known
SCALE_UP = "TriggeredScaleUp"  # the cluster autoscaler's event on a pod that it adds a node for

_NO_IMAGE = "Failed to pull image"  # the classifier's words, whatever the kubelet calls it


@dataclass(frozen=True, slots=True, kw_only=True)
class StartBudget:
    """Seconds for every pod to get a node, and from then on for its container to run.

    partial_s: for the rest of the pods to get one, once the first has. A pod for which an autoscaler
    adds a node has the whole of scheduling_s.
    """

    scheduling_s: float
    start_s: float
    partial_s: float


def cannot_start(
    seen: GangSeen,
    pods: int,
    budget: StartBudget,
    now: datetime,
    *,
    more: Callable[[str], Sequence[Json]] = lambda uid: (),
) -> Condition | None:
    """Return why a gang of `pods` pods is given up at `now`; None while it may still begin, once it
    has, and while nothing of it was seen.

    more: returns all events of a pod, in order; asked for once, where what was seen has no reason.
    """
    job = next((job for job in reversed(seen.jobs) if job.gone_at is None), None)
    if job is None or job.suspended or job.is_finished:
        return None
    waiting = [pod for pod in seen.pods if not (pod.has_run or pod.is_over)]
    missing = max(0, pods - len({pod.index for pod in seen.pods}))
    if not missing and not waiting:
        return None
    start = _Start(
        job=job,
        waiting=waiting,
        missing=missing,
        placed=[pod for pod in seen.pods if pod.node is not None and not pod.is_over],
        grows=any(
            e.reason == SCALE_UP and e.about_uid in {p.uid for p in waiting} for e in seen.events
        ),
        refused=why_not_started({}, _events(seen, job.uid)) if missing else None,
        problems={p.uid: why_not_started(_as_object(p), _events(seen, p.uid)) for p in waiting},
    )
    found = _never(start, now)
    begun = _begun(job)
    if found is not None or begun is None or any(map(_is_gated, waiting)):
        return found
    if missing or any(pod.node is None for pod in waiting):
        return _unplaced(start, begun, budget, now)
    # A pod whose time is unknown had its node by the end of the first budget at the latest.
    latest = begun + timedelta(seconds=budget.scheduling_s)
    placed = max(begun, *(_placed(pod) or latest for pod in waiting))
    if (now - placed).total_seconds() < budget.start_s:
        return None
    pod = _pod_to_name(waiting, start.problems)
    return _not_begun(pod, start.problems[pod.uid], budget, now, more)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """What a gang still lacks. missing: pods that its Job has not made, and refused: why;
    problems: by uid of the pods that wait; placed: those that hold a node; grows: whether nodes are
    being added for those that wait."""

    job: JobStory
    waiting: Sequence[PodStory]
    missing: int
    placed: Sequence[PodStory]
    grows: bool
    refused: StartProblem | None
    problems: Mapping[str, StartProblem | None]


def _never(start: _Start, now: datetime) -> Condition | None:
    """Return what no waiting will cure."""
    problem = start.refused
    if problem is not None and problem.is_final:
        return _given_up(f"Job {start.job.name} can never make its pods", problem, now)
    for pod in start.waiting:
        problem = start.problems[pod.uid]
        if problem is not None and problem.is_final:
            return _given_up(f"Pod {pod.name} can never start", problem, now)
    return None


def _unplaced(
    start: _Start, begun: datetime, budget: StartBudget, now: datetime
) -> Condition | None:
    """Return why not every pod has a node, once a budget for it is over."""
    waited_s = _partial_s(start, now)
    if (now - begun).total_seconds() >= budget.scheduling_s:
        took = f"{budget.scheduling_s:g} s"
    elif waited_s >= budget.partial_s and not start.grows:
        without = start.missing + sum(pod.node is None for pod in start.waiting)
        placed = f"{len(start.placed)} of {len(start.placed) + without} pods held theirs"
        took = f"{budget.partial_s:g} s in which {placed}, which are given back"
    else:
        return None
    unplaced = [pod for pod in start.waiting if pod.node is None]
    if not unplaced:
        what = f"Job {start.job.name} lacked {start.missing} of its pods for {took}"
        return _given_up(what, start.refused, now)
    pod = _pod_to_name(unplaced, start.problems)
    what = f"Pod {pod.name} got no node within {took}"
    return _given_up(what, start.problems[pod.uid], now, otherwise="Unschedulable")


def _partial_s(start: _Start, now: datetime) -> float:
    """Return for how long the first of the pods that have a node has had it; 0 where none has."""
    since = [found for pod in start.placed if (found := _scheduled(pod)) is not None]
    return max((now - min(since)).total_seconds(), 0.0) if since else 0.0


def _scheduled(pod: PodStory) -> datetime | None:
    """Return when the scheduler gave the pod its node; its birth, where that is unknown."""
    for each in mappings(pod.status.get("conditions")):
        if each.get("type") == "PodScheduled" and each.get("status") == "True":
            return time_of(each.get("lastTransitionTime")) or time_of(pod.born_at)
    return time_of(pod.born_at)


def _not_begun(
    pod: PodStory,
    problem: StartProblem | None,
    budget: StartBudget,
    now: datetime,
    more: Callable[[str], Sequence[Json]],
) -> Condition:
    """Return why a pod that has its node is given up; a large image may only be slow."""
    what = f"Pod {pod.name} on {pod.node} did not begin within {budget.start_s:g} s"
    events = [] if problem is not None else more(pod.uid)
    newest = mapping(events[-1]) if events else {}
    if newest.get("reason") == "Pulling":
        what = f"{_NO_IMAGE} within {budget.start_s:g} s for pod {pod.name} on {pod.node}"
    if newest:
        what += f"; its newest event is {newest.get('reason')}: {newest.get('message')}"
    return _given_up(what, problem, now)


def _given_up(
    what: str, problem: StartProblem | None, now: datetime, *, otherwise: str = TIMED_OUT
) -> Condition:
    """Return the condition; it quotes the control plane's own words where there are any."""
    words = "" if problem is None else problem.message
    if problem is not None and problem.reason == IMAGE:
        words = f"{_NO_IMAGE}: {words}"
    return Condition(
        type=CANNOT_START,
        reason=otherwise if problem is None else problem.api_reason,
        message=f"{what}: {words}" if words else f"{what}.",
        at=format_time(now),
        source="supervisor",
    )


def _pod_to_name(pods: Sequence[PodStory], problems: Mapping[str, StartProblem | None]) -> PodStory:
    """Return the pod of which most is known."""
    return next((pod for pod in pods if problems[pod.uid] is not None), pods[0])


def _is_gated(pod: PodStory) -> bool:
    """Whether somebody holds the pod back on purpose, as a queue does."""
    conditions = mappings(pod.status.get("conditions"))
    return any(c.get("reason") == "SchedulingGated" for c in conditions)


def _begun(job: JobStory) -> datetime | None:
    """Return when the Job began to make pods: at its birth, or when a queue admitted it last."""
    return time_of(job.status.get("startTime")) or time_of(job.born_at)


def _placed(pod: PodStory) -> datetime | None:
    """Return when the pod had its node: its kubelet then reports containers that are not ready."""
    for each in mappings(pod.status.get("conditions")):
        if each.get("type") in ("Ready", "ContainersReady"):
            return time_of(each.get("lastTransitionTime"))
    return None


def _as_object(pod: PodStory) -> Json:
    """Return the pod as the API shows it, as far as it was kept."""
    return {
        "kind": "Pod",
        "metadata": {"name": pod.name, "uid": pod.uid},
        "spec": {} if pod.node is None else {"nodeName": pod.node},
        "status": dict(pod.status),
    }


def _events(seen: GangSeen, uid: str) -> Sequence[Json]:
    return [_event(event) for event in seen.events if event.about_uid == uid]


def _event(event: EventSeen) -> Json:
    """Return an event as the API shows it, as far as it was kept."""
    return {
        "type": event.level,
        "reason": event.reason,
        "message": event.message,
        "count": event.count,
        "lastTimestamp": event.last_at,
        "involvedObject": {
            "kind": event.about_kind,
            "name": event.about_name,
            "uid": event.about_uid,
        },
    }
