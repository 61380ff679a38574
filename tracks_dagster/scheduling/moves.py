"""Who makes room for a demand of a higher class. Pure.

A run makes room by saving and ending; it comes back by itself, and its retry spends nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

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


def movable(running: Iterable[Running], policy: SchedulingPolicy, now_s: float) -> list[Running]:
    """Return those that may make room: of the lowest class first, then whoever loses least.

    Of those that lose the same the smallest gang comes first: each of its ranks has to start again.
    """

    def rank(each: Running) -> tuple[int, float, int, str]:
        priority = policy.class_of(each.demand.workload_class).priority
        return priority, each.unsaved_ranks_s, len(each.devices), each.demand.key

    return sorted((each for each in running if may_move(each, policy, now_s)), key=rank)


def victims(
    demand: Demand,
    candidates: Iterable[Running],
    free: FreeDevices,
    *,
    policy: SchedulingPolicy,
    needed: int,
) -> list[Running]:
    """Return who makes room for a demand, and give their devices back to `free`.

    candidates: `movable`, in its order. needed: devices that must be free. Empty, with `free` as it
    was, where it fits without, and where it would not fit if all of lower classes moved.
    """
    mine = policy.class_of(demand.workload_class).priority
    chosen: list[Running] = []
    for each in candidates:
        if free.available(demand) >= needed:
            break
        if policy.class_of(each.demand.workload_class).priority >= mine:
            break
        if free.could_hold(each.devices, demand.memory_bytes):
            free.give_back(each.devices, each.demand.memory_bytes)
            chosen.append(each)
    fits = free.available(demand) >= needed
    moved = []
    for each in reversed(chosen):  # a large one may have made smaller ones needless
        free.take(each.devices, each.demand.memory_bytes)
        if fits and free.available(demand) < needed:
            free.give_back(each.devices, each.demand.memory_bytes)
            moved.append(each)
    return moved[::-1]
