"""The report of a gang of N pods × G ranks: how its ranks ended, what control planes report. Pure.

A pod shows one end for all its ranks; what its own ranks wrote (`pod_files`) is more exact and comes
first. Where an index had several pods (a zombie beside its replacement), the one that ended or was
disrupted first is the story of its ranks; the conditions of all of them are kept.

Statuses come before events, since an event may be lost, be late, or be about what passed by. An event
counts where a pod went unseen, where a kubelet waits without a reason (a mount, a sandbox), and
where there is no pod at all to carry a status (a quota).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tracks_dagster.attempts.pod_files import PodBeat, PodEnd, boots_in, cgroups_in, conditions_of
from tracks_dagster.attempts.ports import GangPhase, GangReport
from tracks_dagster.reasons.evidence import LOG_TAIL_BYTES_MAX, Condition, RankEnd
from tracks_dagster.reasons.hangs import Beat, Phase
from tracks_dagster.reasons.kube_json import mapping, mappings, text, time_text
from tracks_dagster.reasons.pods import PodEvidence, read_pod
from tracks_dagster.wings.kubernetes.sightings import (
    DISRUPTIONS,
    EventSeen,
    GangSeen,
    JobStory,
    PodStory,
    tail,
)

LOGS_BYTES_MAX = 4 * 1024 * 1024  # of all pods together
LOG_BYTES_MIN = 4 * 1024  # of each
ALIKE_MAX = 16  # conditions of one type and reason that are kept: 512 pods wait for the same thing

# Why somebody ended a pod: deliberate, whatever came of the pod.
_DELIBERATE = frozenset(
    {"Preempted", "Evicted", "EvictedDueToPreempted", "Stopped", "NodeShutdown"}
)
# What happened to it or its node: may pass, and so counts only where the pod left no end.
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
# A kubelet's reasons for a wait without a cause.
_SILENT_WAITS = frozenset({"ContainerCreating", "PodInitializing", ""})
KERNEL_LINES_MAX = 200  # of all pods together
UNWATCHED = "Unwatched"  # the type of the condition of what could not be seen


def rank_ends(seen: GangSeen, *, pods: int, ranks_per_pod: int) -> tuple[RankEnd, ...]:
    """Return an end for each rank, in order; one of which nothing is known is empty.

    The log of a pod is at its first rank only. A pod that left no end has the time of
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
    """Return the conditions of the gang's pods and Jobs, and the events of both.

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
    """Return when the pod's end began, as far as known; sorts last when unknown."""
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
    """Yield the Job's own conditions; for most ends only that it has failed."""
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
    """Whether it adds to what the pod's statuses show."""
    if event.reason in _STARTING:
        return not pod.has_run and _waits_silently(pod)
    if not _ends(event) or _was_disrupted(pod):
        return False
    return event.reason in _DELIBERATE or not _has_ended(pod)


def _adds_of_job(event: EventSeen, lacks_pods: bool) -> bool:
    """Whether it adds to what the Job's pods show: that it may make none, or that it was stopped."""
    return _ends(event) or (event.reason == _CREATING and lacks_pods)


def _ends(event: EventSeen) -> bool:
    if event.message.startswith(_CANCELLED):
        return False
    return event.reason in _DELIBERATE or event.reason in _BEFALLEN


def _was_disrupted(pod: PodStory) -> bool:
    """Whether a status shows that a control plane or its kubelet ended it."""
    for status in pod.history:
        if status.get("reason"):
            return True
        kinds = [c.get("type") for c in mappings(status.get("conditions")) if _is_true(c)]
        if DISRUPTIONS.intersection(kinds):
            return True
    return False


def _has_ended(pod: PodStory) -> bool:
    """Whether a status shows how a container of it ended."""
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


# A watcher sees pods from outside; a pod writes down how each of its ranks ended. The pod's own record
# is preferred, since a container has one exit code for all ranks; what it lacks (the pod was killed)
# comes from outside.


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportInputs:
    """All that a report is made of. beats, ends: by pod uid; silent: pods whose beats are old;
    launcher_conditions: its own; boot_ids: of the nodes that were asked, as they are now."""

    nodes: int
    ranks_per_node: int
    seen: GangSeen
    beats: Mapping[str, PodBeat]
    ends: Mapping[str, PodEnd]
    silent: frozenset[str] = frozenset()
    launcher_conditions: Sequence[Condition] = ()
    boot_ids: Mapping[str, str]


def report(known: ReportInputs, phase: GangPhase, *, where: str) -> GangReport:
    """Return the report of a gang that was started."""
    ends = _deciding_ends(known)
    ranks = _ranks(known, ends)
    starts = [rank.started_at for rank in ranks if rank.started_at is not None]
    stops = [rank.ended_at for rank in ranks if rank.ended_at is not None]
    counts = {"pods": known.nodes, "ranks_per_pod": known.ranks_per_node}
    found = (
        *conditions(known.seen, **counts),
        *(condition for end in ends for condition in conditions_of(end, known.ranks_per_node)),
        *known.launcher_conditions,
        *(_unwatched(problem) for problem in known.seen.problems),
    )
    return GangReport(
        phase=phase,
        ranks=ranks,
        conditions=found,
        started_at=min(starts, default=None),
        ended_at=max(stops) if stops and phase is GangPhase.GONE else None,
        where=where,
        sees_all_nodes=True,
        boot_ids={**boots_in([*known.beats.values(), *known.ends.values()]), **known.boot_ids},
        beats=_beats(known),
        cgroup=cgroups_in(ends),
        kernel_lines=tuple(line for end in ends for line in end.kernel_lines)[:KERNEL_LINES_MAX],
    )


def _deciding_ends(known: ReportInputs) -> list[PodEnd]:
    """Return what the pod that decides of each index wrote, by index; where several pods of an index
    wrote and nobody saw them, the first by name."""
    found = []
    for index in range(known.nodes):
        story = deciding_pod(known.seen, index)
        if story is not None:
            end = known.ends.get(story.uid)
        else:
            unseen = [end for end in known.ends.values() if end.index == index]
            end = min(unseen, key=lambda each: each.pod, default=None)
        if end is not None:
            found.append(end)
    return found


def _ranks(known: ReportInputs, ends: Iterable[PodEnd]) -> tuple[RankEnd, ...]:
    written = {rank.rank: rank for end in ends for rank in end.ranks}
    outside = rank_ends(known.seen, pods=known.nodes, ranks_per_pod=known.ranks_per_node)
    return tuple(_merged(written.get(end.rank), end) for end in outside)


def _merged(written: RankEnd | None, outside: RankEnd) -> RankEnd:
    if written is None:
        return outside
    kept = written if written.has_ended else outside
    return replace(
        kept,
        started_at=written.started_at or outside.started_at,
        ended_at=kept.ended_at or outside.ended_at,
        oom_killed=written.oom_killed or outside.oom_killed,
        log_tail=written.log_tail or outside.log_tail,
    )


def _unwatched(problem: str) -> Condition:
    """Name what was not seen: the evidence lacks it."""
    return Condition(type=UNWATCHED, reason="", message=problem, at=None, source="supervisor")


def _beats(known: ReportInputs) -> tuple[Beat, ...]:
    """Return the newest beat of each rank; none while a pod has not started or is silent.

    A gang that waits for a node or for a queue waits as long as these want
    (`start_budget`); it does not hang. Once all pods run, a rank that has written
    nothing is starting. A pod that does not reach the store may train on: its ranks are not taken
    for standing still.
    """
    begun = {pod.index or 0 for pod in known.seen.pods if pod.has_run}
    if not begun.issuperset(range(known.nodes)):
        return ()
    deciding = [deciding_pod(known.seen, index) for index in range(known.nodes)]
    if any(story is not None and story.uid in known.silent for story in deciding):
        return ()
    found = {
        beat.rank: beat
        for story in deciding
        if story is not None and (pod_beat := known.beats.get(story.uid)) is not None
        for beat in pod_beat.ranks
    }
    ranks = range(known.nodes * known.ranks_per_node)
    return tuple(found.get(rank) or Beat(rank=rank, phase=Phase.STARTING) for rank in ranks)
