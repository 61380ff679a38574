"""Which ranks are slow: local, or the whole gang. Pure.

A step's time is the same on every rank, because each waits for all others at the exchange. So ranks
are compared by what each does alone: its own forward and the wait for its data. Rank r is slow when
the fastest's time is below 0.75 of its own, the threshold at which NVIDIA's resiliency extension calls
a rank a straggler (nvidia-resiliency-ext 0.4.1, straggler/reporting.py, relative score). An eighth of
the ranks, and at least one, may stand out so; where more do, the fault is not theirs.

Example: own times of 0.20, 0.20, 0.41, 0.21 s. The fastest is 0.20; 0.20 / 0.41 = 0.49 < 0.75: rank 2.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median

from tracks_dagster.wings.watch.health.tail import ByRank, Gang

STEPS = 20  # over which ranks are compared
SLOW_BELOW = 0.75
OPEN_BELOW = (
    0.85  # of a rank that was found slow already: it recovers only when it is clearly faster
)
SLOW_SHARE_MAX = 8  # one in so many ranks, and at least one
# What a rank is slower by has to matter: 1 ms beside 2 ms is nothing in a step of a second, and a busy
# machine lets a process wait for a few.
STEP_SHARE_MIN, EXCESS_S_MIN = 0.05, 0.005

# What a step or a rank is slow by, in words. REST: of a rank alone, which talks to nobody.
COMPUTE, DATA, COMMUNICATION, REST = "compute", "data", "communication", "the rest of the step"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRank:
    """One rank that stands out. own_s: what it does alone; fastest_s: the same of the fastest rank.

    cause: COMPUTE or DATA, whichever is farther above the median rank's.
    """

    rank: int
    own_s: float
    fastest_s: float
    cause: str


def compared(gangs: Sequence[Gang]) -> bool:
    """Whether there are enough lines to compare ranks by."""
    return bool(window(gangs))


def slow_ranks(gangs: Sequence[Gang], named: Collection[int] = ()) -> tuple[SlowRank, ...]:
    """Return the ranks that are slow over the newest STEPS steps; none where it is not a few.

    named: those that were found slow before.
    """
    lines = window(gangs)
    own = _medians([line.own_s for line in lines])
    data = _medians([line.data_s for line in lines])
    ranks = max(len(own), len(data))
    if ranks < 2:
        return ()
    alone = [_sum(own, data, rank) for rank in range(ranks)]
    known = [seconds for seconds in alone if seconds is not None]
    if len(known) < ranks:
        return ()
    fastest, step_s = min(known), _step_s(lines)
    slow = [
        rank
        for rank, seconds in enumerate(known)
        if fastest < (OPEN_BELOW if rank in named else SLOW_BELOW) * seconds
        and seconds - fastest >= max(EXCESS_S_MIN, STEP_SHARE_MIN * step_s)
    ]
    if len(slow) > max(1, ranks // SLOW_SHARE_MAX):
        return ()
    return tuple(
        SlowRank(rank=rank, own_s=known[rank], fastest_s=fastest, cause=_cause(own, data, rank))
        for rank in slow
    )


def own_times(gangs: Sequence[Gang]) -> list[float]:
    """Return the median own time of each rank over the newest STEPS steps, of those that are known."""
    medians = _medians([line.own_s for line in window(gangs)])
    return [each for each in medians if each is not None]


def window(gangs: Sequence[Gang]) -> list[Gang]:
    """Return the newest lines that hold STEPS steps together; none where there are too few."""
    found: list[Gang] = []
    steps = 0
    for line in reversed(gangs):
        found.append(line)
        steps += line.over
        if steps >= STEPS:
            return found
    return []


def _medians(lines: Sequence[ByRank]) -> list[float | None]:
    """Return the median of each rank over the lines that have it."""
    ranks = max(map(len, lines), default=0)
    by_rank = [
        [line[rank] for line in lines if rank < len(line) and line[rank] is not None]
        for rank in range(ranks)
    ]
    return [median(each) if each else None for each in by_rank]  # type: ignore[type-var]


def _sum(own: Sequence[float | None], data: Sequence[float | None], rank: int) -> float | None:
    """Return what a rank does alone; without hooks in any model that is the wait for its data."""
    parts = [each[rank] for each in (own, data) if rank < len(each)]
    known = [part for part in parts if part is not None]
    return sum(known) if known and len(known) == len(parts) else None


def _cause(own: Sequence[float | None], data: Sequence[float | None], rank: int) -> str:
    return DATA if _above(data, rank) > _above(own, rank) else COMPUTE


def _above(values: Sequence[float | None], rank: int) -> float:
    known = [value for value in values if value is not None]
    value = values[rank] if rank < len(values) else None
    return value - median(known) if value is not None else 0.0


def _step_s(lines: Sequence[Gang]) -> float:
    known = [value for line in lines for value in line.step_s if value is not None]
    return median(known) if known else 0.0
