"""How the ranks of a gang of N pods × G ranks ended, and what control planes said of it. Pure.

A pod shows one end for all its ranks; what its own ranks wrote down (`pod_files`) says more, and comes
first. Where an index had several pods (a zombie beside its replacement), the one that ended or was
disrupted first is the story of its ranks; the conditions of all of them are kept.

Statuses come before events, since an event may be lost, be late, or be about what passed by. An event
counts where a pod went unseen, where a kubelet waits without saying for what (a mount, a sandbox), and
where there is no pod at all to carry a status (a quota).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from tracks_dagster.kubernetes.gangs.sightings import (
    DISRUPTIONS,
    EventSeen,
    GangSeen,
    JobStory,
    PodStory,
    tail,
)
from tracks_dagster.reasons.evidence import LOG_TAIL_BYTES_MAX, Condition, RankEnd
from tracks_dagster.reasons.kube_json import mapping, mappings, text, time_text
from tracks_dagster.reasons.pods import PodEvidence, read_pod

LOGS_BYTES_MAX = 4 * 1024 * 1024  # of all pods together
LOG_BYTES_MIN = 4 * 1024  # of each
ALIKE_MAX = 16  # conditions of one type and reason that are kept: 512 pods wait for the same thing

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


def rank_ends(seen: GangSeen, *, pods: int, ranks_per_pod: int) -> tuple[RankEnd, ...]:
    """Return an end for each rank, in order; one of which nothing is known is empty.

    The log of a pod stands at its first rank only. A pod that went without a word has the time of
    its end and neither exit code nor signal.
    """
    ends: list[RankEnd] = []
    log_bytes = min(LOG_TAIL_BYTES_MAX, max(LOG_BYTES_MIN, LOGS_BYTES_MAX // max(1, pods)))
    for index in range(pods):
        first = index * ranks_per_pod
        story = deciding_pod(seen, index)
        end = RankEnd(rank=first) if story is None else _end(story, first)
        log = "" if story is None else tail(story.log, log_bytes)
        ends.append(replace(end, log_tail=log))
        ends.extend(replace(end, rank=first + each) for each in range(1, ranks_per_pod))
    return tuple(ends)


def conditions(seen: GangSeen, *, pods: int, ranks_per_pod: int) -> tuple[Condition, ...]:
    """Return what control planes said of the gang, by its pods, its Jobs and the events of both.

    One of a pod names the pod's first rank. Of many that are alike the earliest are kept.
    """
    found = [
        *(c for pod in seen.pods for c in _pod_conditions(pod, ranks_per_pod)),
        *(c for job in seen.jobs for c in _job_conditions(job)),
        *event_conditions(seen, pods=pods, ranks_per_pod=ranks_per_pod),
    ]
    return tuple(_without_repeats(sorted(found, key=lambda c: (c.at or "", c.rank or 0))))


def deciding_pod(seen: GangSeen, index: int) -> PodStory | None:
    """Return the pod of that index which ended or was disrupted first; else its first pod."""
    stories = [pod for pod in seen.pods if (pod.index or 0) == index]
    if len(stories) == 1:  # nearly always; of a large gang the reading below would be half the work
        return stories[0]
    return min(
        stories, key=lambda pod: (_trouble_at(pod), pod.born_at or "", pod.uid), default=None
    )


def _end(pod: PodStory, rank: int) -> RankEnd:
    end = _read(pod, rank).end or RankEnd(rank=rank)
    if end.ended_at is None and pod.is_over:
        return replace(end, ended_at=pod.gone_at)
    return end


def _read(pod: PodStory, rank: int) -> PodEvidence:
    return read_pod(pod.history, rank)


def _trouble_at(pod: PodStory) -> str:
    """Return when the pod's end began, as far as anything tells; sorts last when nothing does."""
    read = _read(pod, 0)
    times = [c.at for c in read.conditions if c.type in DISRUPTIONS]
    times += [read.end.ended_at if read.end else None, pod.leaves_at, pod.gone_at]
    return min((at for at in times if at), default="~")


def _pod_conditions(pod: PodStory, ranks_per_pod: int) -> Iterator[Condition]:
    read = _read(pod, (pod.index or 0) * ranks_per_pod)
    for condition in read.conditions:
        # A pod's own reason has no time, and is written when its containers have ended.
        own = condition.type == "Pod" and condition.at is None and read.end is not None
        yield replace(condition, at=read.end.ended_at) if own and read.end else condition


def _job_conditions(job: JobStory) -> Iterator[Condition]:
    """Yield what the Job says of itself; for most ends only that it has failed."""
    for each in job.conditions:
        yield Condition(
            type=f"Job{text(each.get('type'))}",
            reason=text(each.get("reason")),
            message=text(each.get("message")),
            at=time_text(each.get("lastTransitionTime")),
            source="kubernetes",
        )


def _without_repeats(found: Iterable[Condition]) -> Iterator[Condition]:
    alike: Counter[tuple[str, str]] = Counter()
    for condition in found:
        alike[condition.type, condition.reason] += 1
        if alike[condition.type, condition.reason] <= ALIKE_MAX:
            yield condition


def event_conditions(seen: GangSeen, *, pods: int, ranks_per_pod: int) -> Iterator[Condition]:
    """Yield the events that add to the statuses, each reason once for each object."""
    stories = {pod.uid: pod for pod in seen.pods}
    jobs = {job.uid: job.name for job in seen.jobs}
    any_ran = any(pod.has_run for pod in seen.pods)
    indexes = {pod.index or 0 for pod in seen.pods}
    counted: set[tuple[str, str]] = set()
    for event in seen.events:
        key = event.about_uid, event.reason
        if key in counted:
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
            counted.add(key)
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
