"""Who comes first among those that wait. Pure.

Inside a class what was interrupted comes before what never ran: its checkpoints age, and its steps are
paid for. Among the interrupted the one with the least time left is the first: of all orders this one
has the smallest sum of completion times (shortest processing time first; W. E. Smith, Naval Research
Logistics Quarterly 3, 1956), so results come in and devices get free as early as possible.

Nobody starves: who has waited for `wait_s_max` of its class comes before all classes.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter

from tracks_dagster.scheduling.model import Demand, Running, Usage
from tracks_dagster.scheduling.policy import HOUR_S, Order, SchedulingPolicy

FAIR_CHARGE_S = HOUR_S  # of each device that a team gets or has, until its use is counted
NO_USAGE = Usage()

_Rank = tuple[bool, int, bool, float, float, str]


def order(
    waiting: Iterable[Demand],
    running: Iterable[Running] = (),
    *,
    policy: SchedulingPolicy,
    now_s: float,
    usage: Usage = NO_USAGE,
) -> list[Demand]:
    """Return those that wait, first to start first."""
    if policy.order is Order.FIFO:
        # arrival is the order of age already: nobody comes to stand before those that wait
        return sorted(waiting, key=lambda each: (not each.is_interrupted, each.since_s, each.key))
    ranked = sorted(((_rank(each, policy, now_s), each) for each in waiting), key=itemgetter(0))
    if policy.order is Order.FAIR:
        return list(_fair(ranked, running, policy, usage))
    return [each for _, each in ranked]


def _rank(each: Demand, policy: SchedulingPolicy, now_s: float) -> _Rank:
    its = policy.class_of(each.workload_class)
    if now_s - each.since_s >= its.wait_s_max:
        return False, 0, False, 0.0, each.since_s, each.key
    shortest = 0.0
    if each.is_interrupted:
        shortest = math.inf if each.work_s is None else each.work_s
    return True, -its.priority, not each.is_interrupted, shortest, each.since_s, each.key


def _fair(
    ranked: Iterable[tuple[_Rank, Demand]],
    running: Iterable[Running],
    policy: SchedulingPolicy,
    usage: Usage,
) -> Iterator[Demand]:
    """Yield in turns of teams, inside what is equal by class and interruption: the next is of the team
    that had the least for its share, counting what it has now and what it gets before."""
    had = dict(usage.by_team)
    for each in running:
        team = each.demand.team
        had[team] = had.get(team, 0.0) + len(each.devices) * FAIR_CHARGE_S
    shares = {name: allowance.share for name, allowance in policy.teams.items()}
    for _, group in groupby(ranked, key=lambda each: each[0][:3]):
        queues: dict[str, deque[Demand]] = {}
        for _, demand in group:
            queues.setdefault(demand.team, deque()).append(demand)
        heap = [
            (had.get(team, 0.0) / shares.get(team, 1.0), queue[0].since_s, team)
            for team, queue in queues.items()
        ]
        heapq.heapify(heap)
        while heap:
            _, _, team = heapq.heappop(heap)
            demand = queues[team].popleft()
            yield demand
            had[team] = had.get(team, 0.0) + demand.count * FAIR_CHARGE_S
            if queues[team]:
                next_s = queues[team][0].since_s
                heapq.heappush(heap, (had[team] / shares.get(team, 1.0), next_s, team))


def waited_s(demand: Demand, now_s: float) -> float:
    """Return how long it has waited; nothing by a clock that was set back."""
    return max(0.0, now_s - demand.since_s)
