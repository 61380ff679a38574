"""How the ranks of a gang of N pods × G ranks ended, and what control planes said of it. Pure.

A pod shows one end for all its ranks; what its own ranks wrote down (`pod_files`) tells more, and goes
before. Where an index had several pods (a zombie beside its replacement), the one that ended or was
disrupted first is the story of its ranks; the conditions of all of them are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from tracks_dagster.kubernetes.gangs.gang_events import event_conditions
from tracks_dagster.kubernetes.gangs.gang_seen import DISRUPTIONS, GangSeen, JobStory, PodStory
from tracks_dagster.reasons.evidence import LOG_TAIL_BYTES_MAX, Condition, RankEnd
from tracks_dagster.reasons.kube_json import text, time_text
from tracks_dagster.reasons.pods import PodSeen, read_pod

LOGS_BYTES_MAX = 4 * 1024 * 1024  # of all pods together
LOG_BYTES_MIN = 4 * 1024  # of each
ALIKE_MAX = 16  # conditions of one type and reason that are kept: 512 pods wait for the same thing


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


def tail(log: str, size: int) -> str:
    """Return the last whole lines of a log that fit into `size` bytes."""
    data = log.encode("utf-8", "replace")
    if len(data) <= size:
        return log
    cut = data[-size:]
    whole = cut.partition(b"\n")[2] or cut  # one line that is longer: its end
    return whole.decode("utf-8", "ignore")


def _end(pod: PodStory, rank: int) -> RankEnd:
    end = _read(pod, rank).end or RankEnd(rank=rank)
    if end.ended_at is None and pod.is_over:
        return replace(end, ended_at=pod.gone_at)
    return end


def _read(pod: PodStory, rank: int) -> PodSeen:
    return read_pod(pod.history, rank)


def _trouble_at(pod: PodStory) -> str:
    """Return when the pod's end began, as far as anything tells; sorts last when nothing does."""
    read = _read(pod, 0)
    times = [c.at for c in read.conditions if c.type in DISRUPTIONS]
    times += [read.end.ended_at if read.end else None, pod.leaves_at, pod.gone_at]
    return min((at for at in times if at), default="~")


def _pod_conditions(pod: PodStory, ranks_per_pod: int) -> Iterator[Condition]:
    read = _read(pod, (pod.index or 0) * ranks_per_pod)
    for told in read.conditions:
        # A pod's own reason has no time, and is written when its containers have ended.
        own = told.type == "Pod" and told.at is None and read.end is not None
        yield replace(told, at=read.end.ended_at) if own and read.end else told


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
    for told in found:
        alike[told.type, told.reason] += 1
        if alike[told.type, told.reason] <= ALIKE_MAX:
            yield told
