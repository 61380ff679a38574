"""Who makes room for a demand of a higher class. Pure.

A run makes room by saving and ending; it comes back by itself, and its retry spends nothing. A run
without a recent checkpoint is asked to save one first: if the save at its end fails, little is lost.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter

from tracks_dagster.scheduling.model import Demand, Running
from tracks_dagster.scheduling.placement import FreeDevices
from tracks_dagster.scheduling.policy import SchedulingPolicy, WorkloadClass

MOVE_S = 30.0  # how long one that makes room takes to save and end: for expectations alone
SLACK_S = 10.0  # by which a busy machine takes longer, where a promise hangs on it

_Kind = tuple[bool, int, bool, int]  # whether it rests, priority, whether it saves first, devices


def may_move(running: Running, its: WorkloadClass, now_s: float) -> bool:
    """Whether a run may be asked to make room: it has a commit, and did little since then. A commit by
    a clock that is ahead is a young one."""
    if running.is_moving or its.loss_s is None or running.committed_s is None:
        return False
    return now_s - running.committed_s <= its.loss_s


def may_save_first(running: Running, its: WorkloadClass) -> bool:
    """Whether a run may be asked for a checkpoint, after which it may make room: not where its class
    may lose so little that a commit is too old before anybody has seen it."""
    is_asked_in_vain = running.is_moving or its.loss_s is None or its.loss_s < MOVE_S
    return running.saves_when_asked and not is_asked_in_vain


def is_resting(running: Running, rest_s: float, now_s: float) -> bool:
    """Whether it was interrupted before, and runs again for less than `rest_s`.

    Such a run is asked last, and only at the last moment that keeps a promise.
    """
    return running.demand.is_interrupted and now_s - running.began_s < rest_s


def cost_of_move(running: Running) -> float:
    """Return ranks times seconds that a move costs: what is not saved, and to start each rank again."""
    return running.unsaved_ranks_s + len(running.devices) * MOVE_S


class Movable:
    """The runs that may make room, for one demand after the other: nobody does so twice."""

    def __init__(self, running: Iterable[Running], policy: SchedulingPolicy, now_s: float) -> None:
        self._policy = policy
        self._moved: set[str] = set()
        # By kind, in each the one that loses least first: to merge a few sorted lists costs less than
        # to sort thousands of runs again for each demand.
        self._alike: dict[_Kind, list[tuple[float, str, Running]]] = {}
        for each in running:
            its = policy.class_of(each.demand.workload_class)
            saves_first = not may_move(each, its, now_s)
            if each.devices and (not saves_first or may_save_first(each, its)):
                rests = is_resting(each, policy.move_rest_s, now_s)
                kind = (rests, its.priority, saves_first, len(each.devices))
                self._alike.setdefault(kind, []).append((cost_of_move(each), each.demand.key, each))
        for alike in self._alike.values():
            alike.sort(key=itemgetter(0, 1))

    def victims(
        self, demand: Demand, free: FreeDevices, *, needed: int, is_last: bool
    ) -> list[Running]:
        """Return who makes room for a demand, and give their devices back to `free`.

        Of lower classes, the lowest first; in a class those that need not save first, and of these the
        ones that lose least for each device that helps.
        Runs that rest come last, and only if `is_last`: a later move would break the promise. A run
        that rests never makes room for its own eval, or every commit would interrupt it.
        needed: devices that must be free. Empty, with `free` as it was, where it fits without, and
        where it would not fit if all of these moved.
        """
        lower = self._lower(demand, needed - free.available(demand), is_last=is_last)
        chosen: list[Running] = []
        while free.available(demand) < needed and (each := next(lower, None)) is not None:
            if free.could_hold(each.devices, demand.memory_bytes):
                free.give_back(each.devices, each.demand.memory_bytes)
                chosen.append(each)
        fits = free.available(demand) >= needed
        victims = [chosen.pop()] if fits and chosen else []  # before the last one it did not fit
        for each in reversed(chosen):  # a large one may have made smaller ones needless
            free.take(each.devices, each.demand.memory_bytes)
            if fits and free.available(demand) < needed:
                free.give_back(each.devices, each.demand.memory_bytes)
                victims.append(each)
        self._moved.update(each.demand.key for each in victims)
        return victims[::-1]

    def _lower(self, demand: Demand, missing: int, *, is_last: bool) -> Iterator[Running]:
        mine = self._policy.class_of(demand.workload_class).priority

        def ranked(kind: _Kind) -> Iterator[tuple[float, str, Running]]:
            rests, _, _, count = kind
            helping = max(1, min(count, missing))
            for cost, key, each in self._alike[kind]:
                if key not in self._moved and not (rests and key in demand.near):
                    yield cost / helping, key, each

        lower = [k for k in sorted(self._alike) if k[1] < mine and (is_last or not k[0])]
        for _, kinds in groupby(lower, key=itemgetter(0, 1, 2)):
            for _, _, each in heapq.merge(*map(ranked, kinds), key=itemgetter(0, 1)):
                yield each
