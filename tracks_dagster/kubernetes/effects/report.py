"""What is known of a gang, put together for its supervisor. Pure.

A watcher saw the pods from outside; the pods wrote down what only they know: which of their ranks
ended how. Where both speak of a rank the pod's word goes before, since a container has one exit code
for all of them; what is missing in it (the pod was killed) comes from outside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tracks_dagster.attempts.pod_files import PodBeat, PodEnd
from tracks_dagster.attempts.ports import GangPhase, GangReport
from tracks_dagster.kubernetes.gangs.ends import conditions, deciding_pod, rank_ends
from tracks_dagster.kubernetes.gangs.sightings import GangSeen
from tracks_dagster.reasons.evidence import Condition, RankEnd
from tracks_dagster.reasons.hangs import Beat, Phase
from tracks_dagster.track.records import Json

KERNEL_LINES_MAX = 200  # of all pods together
POD_PROBLEM = "PodProblem"  # the type of the condition that says what a pod wrote of itself
NOT_STARTED = "RanksNotStarted"
UNWATCHED = "Unwatched"  # the type of the condition that says what could not be seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """All that a report is made of. beats, ends: by pod uid; unheard: pods whose beats are old; said:
    the launcher's own conditions; boot_ids: what nodes say now, of those that were asked."""

    nodes: int
    ranks_per_node: int
    seen: GangSeen
    beats: Mapping[str, PodBeat]
    ends: Mapping[str, PodEnd]
    unheard: frozenset[str] = frozenset()
    said: Sequence[Condition] = ()
    boot_ids: Mapping[str, str]


def report(known: Known, phase: GangPhase, *, where: str) -> GangReport:
    """Return the report of a gang that was started."""
    ends = _deciding_ends(known)
    ranks = _ranks(known, ends)
    starts = [rank.started_at for rank in ranks if rank.started_at is not None]
    stops = [rank.ended_at for rank in ranks if rank.ended_at is not None]
    counts = {"pods": known.nodes, "ranks_per_pod": known.ranks_per_node}
    found = (
        *conditions(known.seen, **counts),
        *(condition for end in ends for condition in _told_by(end, known.ranks_per_node)),
        *known.said,
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
        boot_ids={**_boot_ids(known), **known.boot_ids},
        beats=_beats(known),
        cgroup=_cgroup(ends),
        kernel_lines=tuple(line for end in ends for line in end.kernel_lines)[:KERNEL_LINES_MAX],
    )


def _deciding_ends(known: Known) -> list[PodEnd]:
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


def _ranks(known: Known, ends: Iterable[PodEnd]) -> tuple[RankEnd, ...]:
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


def _told_by(end: PodEnd, ranks_per_node: int) -> Iterable[Condition]:
    """Yield what a pod says of itself: a drill's conditions, and why it started no ranks."""
    yield from end.conditions
    if end.problem:
        yield Condition(
            type=POD_PROBLEM,
            reason=NOT_STARTED,
            message=end.problem,
            at=None,
            source="supervisor",
            rank=end.index * ranks_per_node,
        )


def _unwatched(problem: str) -> Condition:
    """What is not seen is missing in the evidence, and whoever reads it has to know."""
    return Condition(type=UNWATCHED, reason="", message=problem, at=None, source="supervisor")


def _boot_ids(known: Known) -> dict[str, str]:
    """Return node → boot, as its pods read it last."""
    reports: list[PodBeat | PodEnd] = [*known.beats.values(), *known.ends.values()]
    return {each.node: each.boot_id for each in reports if each.node and each.boot_id}


def _beats(known: Known) -> tuple[Beat, ...]:
    """Return where each rank stood last; none while a pod has not begun, or is not heard of.

    A gang that waits for a node or for a queue waits as long as these want
    (`kubernetes.gangs.start_budget`); it does not hang. Once all pods run, a rank that has written
    nothing is starting. A pod that does not reach the store may train on: its ranks are not taken
    for standing still.
    """
    begun = {pod.index or 0 for pod in known.seen.pods if pod.has_run}
    if not begun.issuperset(range(known.nodes)):
        return ()
    deciding = [deciding_pod(known.seen, index) for index in range(known.nodes)]
    if any(story is not None and story.uid in known.unheard for story in deciding):
        return ()
    found = {
        beat.rank: beat
        for story in deciding
        if story is not None and (pod_beat := known.beats.get(story.uid)) is not None
        for beat in pod_beat.ranks
    }
    ranks = range(known.nodes * known.ranks_per_node)
    return tuple(found.get(rank) or Beat(rank=rank, phase=Phase.STARTING) for rank in ranks)


def _cgroup(ends: Sequence[PodEnd]) -> dict[str, Json]:
    """Return what the pods' memory cgroups counted; of several pods with the index in front."""
    if len(ends) == 1:
        return dict(ends[0].cgroup)
    return {f"pod-{end.index}.{key}": value for end in ends for key, value in end.cgroup.items()}
