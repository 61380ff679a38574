"""Which events tell of a gang's end what no status did: as conditions of type Event. Pure.

Statuses come first, since an event may be lost, be late, or speak of what passed by. An event counts
where a pod went unseen, where a kubelet waits without saying for what (a mount, a sandbox), and where
there is no pod at all to carry a status (a quota).
"""

from __future__ import annotations

from collections.abc import Iterator

from tracks_dagster.kubernetes.gangs.sightings import DISRUPTIONS, EventSeen, GangSeen, PodStory
from tracks_dagster.reasons.evidence import Condition
from tracks_dagster.reasons.kube_json import mapping, mappings

# Why somebody ended a pod: said once and meant, whatever came of the pod.
_DELIBERATE = frozenset(
    {"Preempted", "Evicted", "EvictedDueToPreempted", "Stopped", "NodeShutdown"}
)
# What befell its node or itself: passes by, and so counts only where the pod never said how it ended.
_BEFALLEN = frozenset({"TaintManagerEviction", "NodeNotReady", "NodeLost", "OOMKilling"})
# What keeps it from starting: is over once it runs.
_STARTING = frozenset(
    {
        "FailedScheduling",
        "Failed",
        "BackOff",
        "FailedMount",
        "FailedAttachVolume",
        "FailedMapVolume",
        "FailedCreatePodSandBox",
        "InspectFailed",
        "ErrImageNeverPull",
        "NetworkNotReady",
    }
)
_CREATING = "FailedCreate"  # of a Job: its controller may not make a pod
_CANCELLED = "Cancelling deletion"  # the taint manager's word that it lets a pod live after all
# A kubelet's words for a wait that it says no more of.
_SILENT_WAITS = frozenset({"ContainerCreating", "PodInitializing", ""})


def event_conditions(seen: GangSeen, *, pods: int, ranks_per_pod: int) -> Iterator[Condition]:
    """Yield the events that add to the statuses, each reason once for each object."""
    stories = {pod.uid: pod for pod in seen.pods}
    jobs = {job.uid: job.name for job in seen.jobs}
    any_ran = any(pod.has_run for pod in seen.pods)
    indexes = {pod.index or 0 for pod in seen.pods}
    told: set[tuple[str, str]] = set()
    for event in seen.events:
        key = event.about_uid, event.reason
        if key in told:
            continue
        story = stories.get(event.about_uid)
        if story is not None:
            counts, index = _adds(event, story), story.index or 0
        elif event.about_uid in jobs:
            counts, index = _adds_of_job(event, len(indexes) < pods), None
        else:
            counts = _ends(event) or (event.reason in _STARTING and not any_ran)
            index = _index_of(event.about_name, tuple(jobs.values()))
        if counts:
            told.add(key)
            yield _condition(event, None if index is None else index * ranks_per_pod)


def _adds(event: EventSeen, pod: PodStory) -> bool:
    """Whether it tells of a pod what its statuses do not."""
    if event.reason in _STARTING:
        return not pod.has_run and _waits_silently(pod)
    if not _ends(event) or _was_disrupted(pod):
        return False
    return event.reason in _DELIBERATE or not _has_ended(pod)


def _adds_of_job(event: EventSeen, lacks_pods: bool) -> bool:
    """Whether it tells of a Job what its pods cannot: that it may make none, or that it was stopped."""
    return _ends(event) or (event.reason == _CREATING and lacks_pods)


def _ends(event: EventSeen) -> bool:
    if event.message.startswith(_CANCELLED):
        return False
    return event.reason in _DELIBERATE or event.reason in _BEFALLEN


def _was_disrupted(pod: PodStory) -> bool:
    """Whether a status says that a control plane or its kubelet ended it."""
    for status in pod.history:
        if status.get("reason"):
            return True
        kinds = [c.get("type") for c in mappings(status.get("conditions")) if _is_true(c)]
        if DISRUPTIONS.intersection(kinds):
            return True
    return False


def _has_ended(pod: PodStory) -> bool:
    """Whether a status says how a container of it ended."""
    containers = mappings(pod.status.get("containerStatuses"))
    return any(mapping(mapping(c.get("state")).get("terminated")) for c in containers)


def _waits_silently(pod: PodStory) -> bool:
    """Whether its status gives no cause of its wait."""
    for condition in mappings(pod.status.get("conditions")):
        if condition.get("type") == "PodScheduled" and not _is_true(condition):
            return False
    waits = [
        mapping(mapping(c.get("state")).get("waiting"))
        for name in ("initContainerStatuses", "containerStatuses")
        for c in mappings(pod.status.get(name))
    ]
    return all(wait.get("reason", "") in _SILENT_WAITS for wait in waits)


def _is_true(condition: object) -> bool:
    return mapping(condition).get("status") == "True"


def _index_of(pod: str, jobs: tuple[str, ...]) -> int | None:
    """Return the index in a pod's name, `<job>-<index>-<five letters>`, where the pod is not known."""
    for job in jobs:
        number = pod.removeprefix(f"{job}-").partition("-")[0] if pod.startswith(f"{job}-") else ""
        if number.isdecimal():
            return int(number)
    return None


def _condition(event: EventSeen, rank: int | None) -> Condition:
    return Condition(
        type="Event",
        reason=event.reason,
        message=event.message,
        at=event.first_at,
        source="kubernetes",
        rank=rank,
    )
