"""Who makes room for a demand of a higher class. Pure.

A run makes room by saving and ending; it comes back by itself, and its retry spends nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from operator import itemgetter

from tracks_dagster.scheduling.model import Demand, Running
from tracks_dagster.scheduling.placement import FreeDevices
from tracks_dagster.scheduling.policy import MINUTE_S, SchedulingPolicy

MOVE_S = 30.0  # how long one that makes room takes to save and end: for expectations alone
YOUNG_S = MINUTE_S  # what has run for less has little to lose, whether it committed or not


def may_move(running: Running, policy: SchedulingPolicy, now_s: float) -> bool:
    """Whether a run may be asked to make room: what it would lose is little, and it had its rest.

    A commit by a clock that is ahead is a young one.
    """
    its = policy.class_of(running.demand.workload_class)
    if running.is_moving or its.loss_s is None:
        return False
    ran_s = max(0.0, now_s - running.began_s)
    if running.demand.is_interrupted and ran_s < policy.move_rest_s:
        return False
    if running.committed_s is not None and now_s - running.committed_s <= its.loss_s:
        return True
    return ran_s < YOUNG_S


def cost_of_move(running: Running) -> float:
    """Return ranks times seconds that a move costs: what is not saved, and to start each rank again."""
    return running.unsaved_ranks_s + len(running.devices) * MOVE_S


class Movable:
    """The runs that may make room, for one demand after the other: nobody does so twice."""

    def __init__(self, running: Iterable[Running], policy: SchedulingPolicy, now_s: float) -> None:
        self._policy = policy
        self._moved: set[str] = set()
        # By priority and count of devices, in each the one that loses least first: to merge a few
        # sorted lists costs less than to sort thousands of runs again for each demand.
        self._alike: dict[tuple[int, int], list[tuple[float, str, Running]]] = {}
        for each in running:
            if each.devices and may_move(each, policy, now_s):
                kind = (policy.class_of(each.demand.workload_class).priority, len(each.devices))
                self._alike.setdefault(kind, []).append((cost_of_move(each), each.demand.key, each))
        for alike in self._alike.values():
            alike.sort(key=itemgetter(0, 1))

    def victims(self, demand: Demand, free: FreeDevices, *, needed: int) -> list[Running]:
        """Return who makes room for a demand, and give their devices back to `free`.

        Of lower classes, the lowest first; in a class those that lose least for each device that helps.
        needed: devices that must be free. Empty, with `free` as it was, where it fits without, and
        where it would not fit if all of lower classes moved.
        """
        lower = self._lower(demand, needed - free.available(demand))
        chosen: list[Running] = []
        while free.available(demand) < needed and (each := next(lower, None)) is not None:
            if free.could_hold(each.devices, demand.memory_bytes):
                free.give_back(each.devices, each.demand.memory_bytes)
                chosen.append(each)
        fits = free.available(demand) >= needed
        victims = []
        for each in reversed(chosen):  # a large one may have made smaller ones needless
            free.take(each.devices, each.demand.memory_bytes)
            if fits and free.available(demand) < needed:
                free.give_back(each.devices, each.demand.memory_bytes)
                victims.append(each)
        self._moved.update(each.demand.key for each in victims)
        return victims[::-1]

    def _lower(self, demand: Demand, missing: int) -> Iterator[Running]:
        mine = self._policy.class_of(demand.workload_class).priority

        def ranked(priority: int, count: int) -> Iterator[tuple[int, float, str, Running]]:
            helping = max(1, min(count, missing))
            for cost, key, each in self._alike[priority, count]:
                if key not in self._moved:
                    yield priority, cost / helping, key, each

        lower = (ranked(*kind) for kind in self._alike if kind[0] < mine)
        return (each for _, _, _, each in heapq.merge(*lower, key=itemgetter(0, 1, 2)))
