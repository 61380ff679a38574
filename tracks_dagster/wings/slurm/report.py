"""The report of a gang of N nodes × G ranks: its job by Slurm, its ranks by what nodes stored. Pure.

A node writes down how each of its ranks ended (`attempts.pod_files`); Slurm has one state for all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tracks_dagster.attempts.pod_files import PodBeat, PodEnd, boots_in, cgroups_in, conditions_of
from tracks_dagster.attempts.ports import GangPhase, GangReport
from tracks_dagster.reasons.evidence import Condition, RankEnd
from tracks_dagster.reasons.hangs import Beat, Phase
from tracks_dagster.track.records import format_time
from tracks_dagster.wings.slurm.job_fold import Asked, JobSeen, before_the_limit

KERNEL_LINES_MAX = 200  # of all nodes together
OUTPUT_LINES_MAX = 50  # of what Slurm wrote into the job's output
STOPPED = ("SUSPENDED", "STOPPED")  # states in which no process of a job runs: it does not hang
_OF_SLURM = re.compile(r"^(slurm(step)?d\S*|srun|sbatch|tracks): ")
_CANCELLED = re.compile(r"\*\*\* (STEP|JOB) \S+ ON \S+ CANCELLED AT \S+ \*\*\*")


def report(
    seen: JobSeen,
    asked: Asked,
    *,
    nodes: int,
    ranks_per_node: int,
    beats: Mapping[str, PodBeat],
    ends: Mapping[str, PodEnd],
    silent: frozenset[str] = frozenset(),
    found: Sequence[Condition] = (),
    output: str = "",
    ended_by_us: bool = False,
    where: str,
) -> GangReport:
    """Return the report of a gang that was submitted.

    beats, ends: by the node's uid; silent: those whose beats are old; found: more conditions; output:
    the end of the job's own; ended_by_us: whether a supervisor cancelled the job, of which Slurm says
    the same as of a person.
    """
    by_index = sorted(ends.values(), key=lambda end: end.index)
    words = words_of_slurm(output, but=_CANCELLED if ended_by_us else None)
    ranks = _ranks(seen, by_index, nodes * ranks_per_node, words)
    seen = before_the_limit(seen, ranks, asked)
    own = tuple(c for end in by_index for c in conditions_of(end, ranks_per_node))
    starts = [rank.started_at for rank in ranks if rank.started_at is not None]
    stops = [rank.ended_at for rank in ranks if rank.ended_at is not None]
    is_gone = seen.phase is GangPhase.GONE
    is_stopped = seen.row is not None and seen.row.word in STOPPED
    return GangReport(
        phase=seen.phase,
        ranks=ranks,
        conditions=(*seen.conditions, *own, *found),
        started_at=min(starts, default=None),
        ended_at=max(stops) if stops and is_gone else None,
        where=where,
        sees_all_nodes=True,
        boot_ids=boots_in([*beats.values(), *ends.values()]),
        beats=() if is_stopped else _beats(beats, silent, nodes, ranks_per_node),
        cgroup=cgroups_in(by_index),
        kernel_lines=tuple(line for end in by_index for line in end.kernel_lines)[
            :KERNEL_LINES_MAX
        ],
        slurm_state=seen.state,
        allocated=(seen.row.tres if seen.row is not None else "") or None,
        waits=seen.waits,
    )


def _ranks(seen: JobSeen, ends: Iterable[PodEnd], count: int, words: str) -> tuple[RankEnd, ...]:
    """Return an end for each rank; one that left none has its job's times, once the job is gone."""
    written = {rank.rank: rank for end in ends for rank in end.ranks}
    started_at = None if seen.started_at is None else format_time(seen.started_at)
    ended_at = None if seen.ended_at is None else format_time(seen.ended_at)
    is_over = seen.phase is GangPhase.GONE and started_at is not None
    found = []
    for number in range(count):
        rank = written.get(number, RankEnd(rank=number))
        if is_over and not rank.has_ended:
            rank = replace(rank, started_at=rank.started_at or started_at, ended_at=ended_at)
        found.append(rank)
    if found and words:
        first = found[0]
        log = f"{first.log_tail.rstrip()}\n{words}" if first.log_tail else words
        found[0] = replace(first, log_tail=log)
    return tuple(found)


def words_of_slurm(output: str, *, but: re.Pattern[str] | None = None) -> str:
    """Return the lines of a job's output that Slurm wrote itself, each with its mark, but for some."""
    lines = [
        line
        for line in output.splitlines()
        if _OF_SLURM.match(line) and not (but and but.search(line))
    ]
    return "\n".join(lines[-OUTPUT_LINES_MAX:])


def _beats(
    beats: Mapping[str, PodBeat], silent: frozenset[str], nodes: int, ranks_per_node: int
) -> tuple[Beat, ...]:
    """Return the newest beat of each rank; none while a node has not started or is silent.

    What waits in Slurm's queue does not hang, and a node that does not reach the store may train on.
    """
    speaking = {uid: beat for uid, beat in beats.items() if uid not in silent}
    if len({beat.index for beat in speaking.values()}) < nodes:
        return ()
    found = {beat.rank: beat for node in speaking.values() for beat in node.ranks}
    ranks = range(nodes * ranks_per_node)
    return tuple(found.get(rank) or Beat(rank=rank, phase=Phase.STARTING) for rank in ranks)
