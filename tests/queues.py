"""Queues for tests: what waits, what runs and the devices, in few words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from tracks_dagster.scheduling.model import NEVER, Demand, Device, Plan, Running
from tracks_dagster.scheduling.order import NO_USAGE
from tracks_dagster.scheduling.policy import SchedulingPolicy
from tracks_dagster.scheduling.rules import PlanContext, inventories, plan

GIB = 2**30
NOW_S = 1000.0


def wants(key: str, count: int = 1, **fields: Any) -> Demand:
    """Return a demand that began to wait just now."""
    return Demand(key=key, count=count, **{"since_s": NOW_S, **fields})


def runs(key: str, *devices: str, left_s: float | None = None, **fields: Any) -> Running:
    """Return a run on these devices, which began long ago; fields of its demand too."""
    own = {name: fields.pop(name) for name in _OF_RUNNING & set(fields)}
    demand = wants(key, max(1, len(devices)), **fields)
    return Running(demand=demand, devices=devices, left_s=left_s, **own)


def nodes(*sizes: int, memory: int | None = None, **fields: Any) -> list[Device]:
    """Return devices "n0/0", "n0/1", … of nodes of these sizes."""
    return [
        Device(name=f"n{node}/{place}", node=f"n{node}", memory_bytes=memory, **fields)
        for node, size in enumerate(sizes)
        for place in range(size)
    ]


def planned(
    waiting: list[Demand],
    running: list[Running],
    devices: list[Device],
    now_s: float = NOW_S,
    **policy: Any,
) -> Plan:
    """Return the plan for them. policy: what differs from the shipped one; `usage` too."""
    usage = policy.pop("usage", NO_USAGE)
    given = policy.pop("policy", None) or SchedulingPolicy(**policy)
    context = PlanContext(policy=given, now_s=now_s, usage=usage)
    return plan(waiting, running, devices, context)


def started(found: Plan) -> dict[str, tuple[str, ...]]:
    """Return key → devices of those that start now."""
    return {each.key: each.devices for each in found.starts}


def why(found: Plan, key: str) -> str:
    """Return the sentence for one that waits."""
    return next(each.why for each in found.waits if each.key == key)


def expected(found: Plan) -> dict[str, float | None]:
    """Return key → in how many seconds it starts, of those that wait."""
    return {each.key: each.in_s for each in found.waits}


_OF_RUNNING = {"began_s", "committed_s", "unsaved_ranks_s", "saves_when_asked", "is_moving"}


@dataclass(slots=True)
class Played:
    """A queue that is played to its end. promised: the start that each was promised first, as the
    first one of its queue; never: those that can never start."""

    starts: dict[str, float] = field(default_factory=dict)
    promised: dict[str, float] = field(default_factory=dict)
    never: set[str] = field(default_factory=set)
    moves: int = 0


def play(
    arrivals: list[Demand],
    devices: list[Device],
    policy: SchedulingPolicy,
    *,
    longer: float = 1.0,
    asks_twice: bool = True,
) -> Played:
    """Play a queue to its end. longer: than its `work_s` each runs; 1: the estimates are true.
    asks_twice: each plan without its words too, over devices that were prepared once for all of them:
    it starts and moves the same.

    Nothing saves before it is asked; then it has in a second. Checks at each moment that nobody has
    half a gang, and no device has more than fits. Raises AssertionError where it comes to a stand
    before all have started that can.
    """
    played, now_s, known = Played(), 0.0, inventories(devices)
    coming = sorted(arrivals, key=lambda each: each.since_s)
    waiting: dict[str, Demand] = {}
    running: dict[str, Running] = {}  # left_s: of them, from their beginning on
    saved: set[str] = set()

    def end_s(each: Running) -> float:
        return each.began_s + (each.left_s or 0.0)

    while coming or waiting or running:
        while coming and coming[0].since_s <= now_s:
            demand = coming.pop(0)
            waiting[demand.key] = demand
        there = [
            each._replace(
                left_s=max(0.0, each.began_s + (each.left_s or 0.0) / longer - now_s),
                committed_s=now_s if each.demand.key in saved else None,
                saves_when_asked=True,
            )
            for each in running.values()
        ]
        given = (list(waiting.values()), there, devices)
        context = PlanContext(policy=policy, now_s=now_s)
        found = plan(*given, context)
        if asks_twice:
            silent = plan(*given[:2], known, context, explains=False)
            assert (silent.starts, silent.moves) == (found.starts, found.moves)
        for start in found.starts:
            demand = waiting.pop(start.key)
            assert len(set(start.devices)) == demand.count, "a gang is whole or not there"
            played.starts.setdefault(start.key, now_s)
            running[start.key] = Running(
                demand=demand,
                devices=start.devices,
                began_s=now_s,
                left_s=(demand.work_s or 0.0) * longer,
            )
        _check(running.values(), devices)
        asked = {move.key for move in found.moves if move.saves_first}
        assert saved.isdisjoint(asked)
        assert saved.issuperset({move.key for move in found.moves} - asked)
        saved |= asked
        for move in found.moves:
            if move.saves_first:
                continue
            left = running[move.key]
            played.moves += 1
            work_s = (end_s(left) - now_s - 1.0) / longer
            running[move.key] = left._replace(is_moving=True, left_s=now_s - left.began_s + 1.0)
            if work_s > 0:
                back = replace(left.demand, since_s=now_s + 1.0, work_s=work_s, is_interrupted=True)
                coming = sorted([*coming, back], key=lambda each: each.since_s)
        for each in found.waits:
            if each.starts == NEVER:
                played.never.add(each.key)
                del waiting[each.key]
        first = next((key for key in found.order if key in waiting), None)
        if first is not None and (in_s := expected(found)[first]) is not None:
            played.promised.setdefault(first, now_s + in_s)
        events = [end_s(each) for each in running.values()]
        events += [each.since_s for each in coming[:1]]
        events += [now_s + 1.0] if asked else []
        assert events or not waiting, f"nothing happens any more, and {list(waiting)} wait"
        if events:
            now_s = max(now_s, min(events))
            running = {key: each for key, each in running.items() if end_s(each) > now_s}
    return played


def _check(running: Iterable[Running], devices: list[Device]) -> None:
    sizes = {device.name: device.memory_bytes for device in devices}
    held: dict[str, list[int | None]] = {}
    for each in running:
        for name in each.devices:
            held.setdefault(name, []).append(each.demand.memory_bytes)
    for name, needs in held.items():
        known = [need for need in needs if need is not None]
        if len(needs) > 1:
            assert len(known) == len(needs), f"{name} is shared by one whose need nobody knows"
            assert sizes[name] is not None
            assert sum(known) <= (sizes[name] or 0), f"{name} is overbooked"
