"""Who comes first among those that wait. Pure.

Inside a class what was interrupted comes before what never ran: its checkpoints age, and its steps are
paid for. Among the interrupted the one with the least time left is the first: of all orders this one
has the smallest sum of completion times (shortest processing time first; W. E. Smith, Naval Research
Logistics Quarterly 3, 1956), so results come in and devices get free as early as possible.

Nobody starves: who has waited for `wait_s_max` of its class comes before every class that promises
nothing, and after twice of it before all. So an eval does not wait behind a large run that is old.
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

PASSED_FACTOR = 2.0  # of wait_s_max: who has waited so long is the first, and passed by nobody
FAIR_CHARGE_S = HOUR_S  # of each device that a team gets or has, until its use is counted
NO_USAGE = Usage()

# (-priority, not aged, not interrupted, time left, since, key): the smallest is the first
_Rank = tuple[float, bool, bool, float, float, str]


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
    aged = 0.5 + max(  # above every class without a promise
        (each.priority for each in policy.classes.values() if each.promise_s is None), default=0
    )
    ranked = sorted(
        ((_rank(each, policy, now_s, aged), each) for each in waiting), key=itemgetter(0)
    )
    if policy.order is Order.FAIR:
        return list(_fair(ranked, running, policy, usage))
    return [each for _, each in ranked]


def is_overdue(demand: Demand, policy: SchedulingPolicy, now_s: float) -> bool:
    """Whether it has waited so long that nobody passes it any more."""
    wait_s_max = policy.class_of(demand.workload_class).wait_s_max
    return now_s - demand.since_s >= PASSED_FACTOR * wait_s_max


def _rank(each: Demand, policy: SchedulingPolicy, now_s: float, aged: float) -> _Rank:
    its = policy.class_of(each.workload_class)
    if is_overdue(each, policy, now_s):
        return -math.inf, False, False, 0.0, each.since_s, each.key
    if now_s - each.since_s >= its.wait_s_max:
        return -max(aged, its.priority), False, False, 0.0, each.since_s, each.key
    shortest = 0.0
    if each.is_interrupted:
        shortest = math.inf if each.work_s is None else each.work_s
    return -its.priority, True, not each.is_interrupted, shortest, each.since_s, each.key


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
    for (_, is_young, _), group in groupby(ranked, key=lambda each: each[0][:3]):
        if not is_young:
            for _, demand in group:
                had[demand.team] = had.get(demand.team, 0.0) + demand.count * FAIR_CHARGE_S
                yield demand
            continue
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
