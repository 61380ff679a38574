"""The rules of the queue: who starts now and where, who makes room, why each other one waits. Pure.

The live queue and the simulator ask the same `plan`, so what is simulated is what runs.

- A demand gets all its devices at once or none (a gang), so two that wait never hold each other's.
- The first one that does not fit is promised a start: when as many devices as it wants will be free, by
  what is known of the ends of those that run. Others pass it only if they end before, or if it can do
  without their devices then (EASY backfill; D. Lifka, JSSPP 1995). Where no end is known nothing can be
  promised, and only devices that the first one cannot use at all are given to others.
- Who would wait longer than the promise of its class gets devices from lower classes: from those that
  lose little by it, and not if it would still not fit.
- After `wait_s_max` of its class a demand comes before every class that promises nothing; after twice
  of it before all, and nobody passes it any more, but onto devices that are kept for another class.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter, itemgetter

from tracks_dagster.scheduling import words
from tracks_dagster.scheduling.caps import Cap, Caps, Key
from tracks_dagster.scheduling.model import (
    LATER,
    NEVER,
    Demand,
    Device,
    Move,
    Plan,
    Running,
    Start,
    Usage,
    Waits,
)
from tracks_dagster.scheduling.moves import MOVE_S, SLACK_S, Movable, may_move
from tracks_dagster.scheduling.order import NO_USAGE, is_overdue, order, waited_s
from tracks_dagster.scheduling.placement import NOWHERE, FreeDevices, Inventory, Near
from tracks_dagster.scheduling.policy import Placement, SchedulingPolicy, Sharing

FORESEEN_MAX = 64  # demands whose start one plan foresees, of each kind; the others have a place
AFTER_MAX = 8  # keys that a wait names
NEAR_PLACEMENTS = frozenset({Placement.GROUP, Placement.LOCALITY})

End = tuple[float, int, Running]  # when it frees its devices, infinite where nobody knows; a number


@dataclass(slots=True, kw_only=True)
class Reserved:
    """The start that the first one of a queue is promised.

    at_s: when; infinite where nobody knows. free: what is free then, before it starts. after: whose
    ends make room. rest: the ends that come later.
    """

    demand: Demand
    needed: int
    at_s: float
    free: FreeDevices
    after: tuple[str, ...]
    rest: list[End]


def reserve(
    demand: Demand, free: FreeDevices, ends: Sequence[End], *, needed: int, now_s: float
) -> Reserved:
    """Return when `needed` devices will be free that a demand can use. ends: the first one first."""
    later, at = free.copy(), 0
    for end_s, group in groupby(ends, key=itemgetter(0)):
        if math.isinf(end_s):
            break
        ending = [each for _, _, each in group]
        for each in ending:
            later.give_back(each.devices, each.demand.memory_bytes)
        at += len(ending)
        if later.available(demand) >= needed:
            after = tuple(each.demand.key for each in ending)
            at_s, rest = max(end_s, now_s), list(ends[at:])
            return Reserved(
                demand=demand, needed=needed, at_s=at_s, free=later, after=after, rest=rest
            )
    unknown = tuple(each.demand.key for _, _, each in ends[at:])
    return Reserved(demand=demand, needed=needed, at_s=math.inf, free=later, after=unknown, rest=[])


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanContext:
    """The policy of a plan, the time it is made at, and what was used recently."""

    policy: SchedulingPolicy
    now_s: float
    usage: Usage = NO_USAGE


def plan(
    waiting: Iterable[Demand],
    running: Iterable[Running],
    devices: Iterable[Device] | Mapping[str, Inventory],
    context: PlanContext,
    *,
    explains: bool = True,
) -> Plan:
    """Return what follows now: who starts on which devices, who makes room, and why others wait.

    devices: as they are, or as `inventories` returns them, which a plan does not change.
    explains: whether it says of those that wait until when and for whom; without, the same starts and
    moves follow sooner. The same arguments give the same plan. How long that takes: docs/scheduling.md.
    """
    runs = tuple(running)
    policy, now_s, usage = context.policy, context.now_s, context.usage
    ordered = order(waiting, runs, policy=policy, now_s=now_s, usage=usage)
    planning = _Planning(runs, devices, policy, now_s, usage)
    for demand in ordered:
        planning.decide(demand)
    for queue in planning.queues.values():
        foreseen = planning.make_room(queue, explains=explains)
        if explains:
            planning.explain(queue, foreseen)
    waits = planning.waits
    return Plan(
        starts=tuple(planning.starts),
        moves=tuple(planning.moves),
        waits=tuple(waits[each.key] for each in ordered if each.key in waits),
        order=tuple(each.key for each in ordered),
    )


@dataclass(slots=True, kw_only=True)
class _Queue:
    """What waits for one kind of device, and what there is of it. blocked: in order."""

    free: FreeDevices
    running: list[Running]  # with those that start in this plan, behind the others
    there_count: int  # of the others
    in_use: Counter[str]  # devices of each class
    reserved: Reserved | None = None
    is_closed: bool = False  # nobody passes the first one
    blocked: list[Demand] = field(default_factory=list)
    capped: list[tuple[Demand, Cap]] = field(default_factory=list)
    room: dict[str, tuple[str, ...]] = field(default_factory=dict)  # who makes room for whom
    movable: Movable | None = None  # these three are made when first asked
    by_key: dict[str, Running] | None = None
    # devices freed by then, when, by whom
    cap_ends: dict[Key, list[tuple[int, float, str]]] | None = None


def inventories(devices: Iterable[Device]) -> dict[str, Inventory]:
    """Return the devices by kind, as `plan` takes them: for many plans over the same ones."""
    by_kind: dict[str, list[Device]] = {}
    for kind, group in groupby(devices, key=attrgetter("kind")):
        by_kind.setdefault(kind, []).extend(group)
    return {kind: Inventory(known) for kind, known in by_kind.items()}


def _queues(
    devices: Mapping[str, Inventory], running: Sequence[Running], policy: SchedulingPolicy
) -> dict[str, _Queue]:
    runs: dict[str, list[Running]] = {kind: [] for kind in devices}
    for each in running:
        if each.demand.kind in runs:
            runs[each.demand.kind].append(each)
    shares = policy.sharing is Sharing.MEMORY
    return {
        kind: _Queue(
            free=FreeDevices(known, runs[kind], shares=shares),
            running=runs[kind],
            there_count=len(runs[kind]),
            in_use=Counter(),
        )
        for kind, known in devices.items()
    }


def _end_s(running: Running, now_s: float) -> float:
    left_s = running.left_s
    if running.is_moving:
        left_s = MOVE_S if left_s is None else min(left_s, MOVE_S)
    if left_s is None:
        return math.inf
    return now_s + left_s if left_s > 0.0 else now_s


@dataclass(slots=True, kw_only=True)
class _Foreseen:
    """The start that is expected of one that waits. at_s: infinite where nobody knows."""

    at_s: float
    after: tuple[str, ...] = ()


class _Planning:
    """A plan in the making."""

    def __init__(
        self,
        running: Sequence[Running],
        devices: Iterable[Device] | Mapping[str, Inventory],
        policy: SchedulingPolicy,
        now_s: float,
        usage: Usage,
    ) -> None:
        self.starts: list[Start] = []
        self.moves: list[Move] = []
        self.waits: dict[str, Waits] = {}
        known = devices if isinstance(devices, Mapping) else inventories(devices)
        self.queues = _queues(known, running, policy)
        self._policy, self._now_s, self._running = policy, now_s, running
        self._caps = Caps(policy, running, usage)
        self._keep = [(name, each) for name, each in policy.classes.items() if each.reserved]
        if self._keep:
            for each in running:
                if (queue := self.queues.get(each.demand.kind)) is not None:
                    queue.in_use[policy.class_name(each.demand.workload_class)] += len(each.devices)

    def decide(self, demand: Demand) -> None:
        """Start one, or keep it waiting. What is held back by itself alone holds nobody up."""
        queue = self.queues.get(demand.kind)
        if queue is None:
            self._wait(demand, NEVER, words.no_devices(demand))
        elif (problem := self._never(demand, queue)) is not None:
            self._wait(demand, NEVER, problem)
        elif (problem := self._own_wait(demand, queue)) is not None:
            self._wait(demand, LATER, problem)
        elif (cap := self._caps.full(demand)) is not None:
            queue.capped.append((demand, cap))
        elif not self._starts(demand, queue):
            queue.blocked.append(demand)

    def explain(self, queue: _Queue, foreseen: Mapping[str, _Foreseen]) -> None:
        """Say of all that wait for one kind of device until when, and for whom."""
        for place, demand in enumerate(queue.blocked, start=1):
            found = foreseen.get(demand.key)
            ahead = "" if place == 1 else queue.blocked[0].key
            if found is None:
                then = f"place {place} of {len(queue.blocked)}"
            elif demand.key in queue.room:
                then = words.makes_room(queue.room[demand.key], MOVE_S)
            else:
                then = words.after(found.after, found.at_s - self._now_s, ahead)
            usable = queue.free.large_enough(demand.memory_bytes)
            free, kept = queue.free.available(demand), ""
            if free >= demand.count:
                kept = words.kept(self._kept_for(demand, queue), ahead)
            why = f"{words.free(demand, free, usable)}{kept}; {then}"
            self._wait(demand, LATER, why, found)
        for demand, cap in queue.capped:
            self._explain_cap(demand, cap, queue)

    def _starts(self, demand: Demand, queue: _Queue) -> bool:
        """Start a demand if it fits, and nobody before it in the queue would start later by that."""
        needed = self._needed(demand, queue)
        fits = queue.free.available(demand) >= needed
        first = queue.reserved
        if first is not None:
            return fits and self._policy.backfill and self._passes(demand, queue, first)
        if fits:
            self._start(demand, queue, self._put(demand, queue), "")
            return True
        queue.is_closed = is_overdue(demand, self._policy, self._now_s)
        queue.reserved = self._reserve(demand, queue, needed)
        if self._breaks_promise(demand, queue.reserved.at_s):
            moving = set(self._make_room_for(demand, queue, self._soon(queue), needed))
            if moving:  # nobody passes onto what they free
                queue.running = [
                    each._replace(is_moving=True) if each.demand.key in moving else each
                    for each in queue.running
                ]
                queue.reserved = self._reserve(demand, queue, needed)
        return False

    def _reserve(self, demand: Demand, queue: _Queue, needed: int) -> Reserved:
        ends = self._ends(queue)
        return reserve(demand, queue.free, ends, needed=needed, now_s=self._now_s)

    def _passes(self, demand: Demand, queue: _Queue, first: Reserved) -> bool:
        need = demand.memory_bytes
        name = self._policy.class_name(demand.workload_class)
        if self._keep and demand.count <= dict(self._kept_for(first.demand, queue)).get(name, 0):
            names = self._put(demand, queue)
            first.free.take(names, need)
            first.needed -= demand.count  # what was kept is in use as meant
            how = f"; of what is kept for class {name}"
            heapq.heappush(first.rest, self._start(demand, queue, names, how))
            return True
        is_known = demand.work_s is not None and math.isfinite(first.at_s)
        if is_known and not queue.is_closed and self._now_s + (demand.work_s or 0.0) <= first.at_s:
            how = f"; it ends before {first.demand.key} can start"
            self._start(demand, queue, self._put(demand, queue), how)
            return True
        before = first.free.available(first.demand)
        spare = max(0, before - first.needed) + queue.free.useless(first.demand)
        rooms = queue.free.rooms(demand)
        if demand.count > spare + rooms:
            return False
        # No empty one can be spared; but with a single rank the first one may share what is taken.
        only_shared = demand.count > spare and first.demand.count > 1
        for shared_only in (True,) if only_shared else (False, True):
            if shared_only and rooms < demand.count:
                break
            names = self._put(demand, queue, shared_only=shared_only)
            first.free.take(names, need)
            left = first.free.available(first.demand)
            is_free = left == before or left >= first.needed
            if queue.is_closed:
                is_free = not queue.free.could_hold(names, first.demand.memory_bytes)
            if is_free:
                how = f"; {first.demand.key}, which waits for more, can do without"
                heapq.heappush(first.rest, self._start(demand, queue, names, how))
                return True
            first.free.give_back(names, need)
            queue.free.give_back(names, need)
        return False

    def _put(self, demand: Demand, queue: _Queue, *, shared_only: bool = False) -> tuple[str, ...]:
        near, placement = self._near(demand, queue), self._policy.placement
        return queue.free.put(demand, placement, near, shared_only=shared_only)

    def _near(self, demand: Demand, queue: _Queue) -> Near:
        if not demand.near or self._policy.placement not in NEAR_PLACEMENTS:
            return NOWHERE
        if self._policy.placement is Placement.LOCALITY:
            return queue.free.near_nodes(demand.near)
        if queue.by_key is None:
            queue.by_key = {each.demand.key: each for each in queue.running}
        found = [queue.by_key[key] for key in demand.near if key in queue.by_key]
        return queue.free.near_runs(found)

    def _start(self, demand: Demand, queue: _Queue, names: tuple[str, ...], how: str) -> End:
        self._caps.add(demand)
        if self._keep:
            queue.in_use[self._policy.class_name(demand.workload_class)] += demand.count
        near = self._near(demand, queue)
        beside = queue.free.is_shared(names)
        where = words.where(queue.free, names, self._policy.placement, near)
        where += words.links([queue.free.devices[name] for name in names])
        why = f"{words.needs(demand)} {'shared' if beside else 'free'}{where}{how}"
        self.starts.append(Start(key=demand.key, devices=names, why=why))
        now = Running(demand=demand, devices=names, began_s=self._now_s, left_s=demand.work_s)
        queue.running.append(now)
        return _end_s(now, self._now_s), len(queue.running), now

    def _ends(self, queue: _Queue) -> list[End]:
        """Return when those that run free their devices, the first one first."""
        now_s = self._now_s
        ends = [(_end_s(each, now_s), n, each) for n, each in enumerate(queue.running)]
        return sorted(ends, key=itemgetter(0))

    def _foresee(self, queue: _Queue, count: int) -> dict[str, _Foreseen]:
        """Return when each of the first `count` will start, if nobody passes another any more."""
        first = queue.reserved
        if first is None:
            return {}
        found: dict[str, _Foreseen] = {}
        at_s, gone, free, ends = first.at_s, list(first.after), first.free, first.rest
        for demand in queue.blocked[:count]:
            needed = self._needed(demand, queue)
            while math.isfinite(at_s) and free.available(demand) < needed:
                end_s, _, ending = heapq.heappop(ends) if ends else (math.inf, 0, None)
                gone = gone if end_s <= at_s else []
                at_s = max(at_s, end_s)
                if ending is not None and math.isfinite(end_s):
                    gone.append(ending.demand.key)
                    free.give_back(ending.devices, ending.demand.memory_bytes)
            after = tuple(gone)
            found[demand.key] = _Foreseen(at_s=at_s, after=after)
            if math.isfinite(at_s):
                names = free.put(demand, self._policy.placement)
                then = Running(demand=demand, devices=names, left_s=demand.work_s)
                heapq.heappush(ends, (_end_s(then, at_s), len(queue.running) + len(found), then))
        return found

    def make_room(self, queue: _Queue, *, explains: bool) -> dict[str, _Foreseen]:
        """Let runs of lower classes move for those whose promise would be broken.

        Returns the starts that are foreseen: of those with a promise, and of others if `explains`.
        """
        considered = queue.blocked[:FORESEEN_MAX]
        classes = [self._policy.class_of(each.workload_class) for each in considered]
        promised = [n for n, its in enumerate(classes, start=1) if its.promise_s is not None]
        last = max(promised, default=0) if self._policy.moves else 0
        foreseen = self._foresee(queue, len(considered) if explains else last)
        soon = self._soon(queue) if last else queue.free
        hopeless: dict[tuple[object, ...], int] = {}  # kind of demand → devices it lacked
        # Until one is late and has no room, or was promised nothing: who is behind it has to pass it.
        is_first = True
        for demand, its in zip(considered[:last], classes, strict=False):
            needed, found = self._needed(demand, queue), foreseen[demand.key]
            missing = needed - soon.available(demand)
            kind = (its.priority, demand.memory_bytes, self._is_last_moment(demand), demand.near)
            if missing > 0:
                room: tuple[str, ...] = ()
                is_late = self._breaks_promise(demand, found.at_s)
                may = is_late and (is_first or self._would_pass(demand, queue))
                if may and missing < hopeless.get(kind, missing + 1):
                    room = self._make_room_for(demand, queue, soon, needed)
                    if not room:
                        hopeless[kind] = missing
                if not room:
                    is_first = is_first and its.promise_s is not None and not is_late
                    continue
                found.at_s, found.after = self._now_s + MOVE_S, room
            soon.put(demand, self._policy.placement)
        return foreseen

    def _make_room_for(
        self, demand: Demand, queue: _Queue, soon: FreeDevices, needed: int
    ) -> tuple[str, ...]:
        """Let others move for a demand, if that is enough; their devices are free in `soon` then.

        Where some of them have to save first, those are asked for that and nobody moves yet.
        """
        if queue.movable is None:
            there = queue.running[: queue.there_count]
            queue.movable = Movable(there, self._policy, self._now_s)
        name = self._policy.class_name(demand.workload_class)
        is_last = self._is_last_moment(demand)
        chosen = queue.movable.victims(demand, soon, needed=needed, is_last=is_last)
        unsaved = [each for each in chosen if not self._may_move(each)]
        for each in unsaved or chosen:
            key, why = each.demand.key, words.move(each, demand, name, self._now_s)
            move = Move(key=key, for_key=demand.key, why=why, saves_first=bool(unsaved))
            self.moves.append(move)
        keys = tuple(each.demand.key for each in chosen)
        if keys:
            queue.room[demand.key] = keys
        return keys

    def _may_move(self, running: Running) -> bool:
        its = self._policy.class_of(running.demand.workload_class)
        return may_move(running, its, self._now_s)

    def _soon(self, queue: _Queue) -> FreeDevices:
        """Return what is free once those that move already have ended."""
        soon = queue.free.copy()
        for each in queue.running:
            if each.is_moving:
                soon.give_back(each.devices, each.demand.memory_bytes)
        return soon

    def _breaks_promise(self, demand: Demand, at_s: float) -> bool:
        """Whether a start at that time is later than the class promises, and than a move takes."""
        left_s = self._promised_in_s(demand)
        return self._policy.moves and at_s - self._now_s > max(left_s, MOVE_S)

    def _is_last_moment(self, demand: Demand) -> bool:
        """Whether a move that is asked for any later may break its promise."""
        return self._promised_in_s(demand) <= MOVE_S + SLACK_S

    def _promised_in_s(self, demand: Demand) -> float:
        """Return when its class promises a start; infinite where it promises none."""
        promise_s = self._policy.class_of(demand.workload_class).promise_s
        return math.inf if promise_s is None else promise_s - waited_s(demand, self._now_s)

    def _would_pass(self, demand: Demand, queue: _Queue) -> bool:
        """Whether it would pass the first one, once others have made room for it."""
        first = queue.reserved
        if first is None or queue.is_closed or demand.work_s is None:
            return False
        return self._now_s + MOVE_S + demand.work_s <= first.at_s < math.inf

    def _needed(self, demand: Demand, queue: _Queue) -> int:
        """Return how many devices must be free: its own, and those kept for higher classes."""
        if not self._keep:
            return demand.count
        return demand.count + sum(left for _, left in self._kept_for(demand, queue))

    def _kept_for(self, demand: Demand, queue: _Queue) -> list[tuple[str, int]]:
        """Return (class, devices) that are to stay free when it has started."""
        mine = self._policy.class_of(demand.workload_class)
        return [
            (name, each.reserved - queue.in_use[name])
            for name, each in self._keep
            if each.priority > mine.priority and each.reserved > queue.in_use[name]
        ]

    def _never(self, demand: Demand, queue: _Queue) -> str | None:
        """Return why it can never start here, or None."""
        need = demand.memory_bytes
        there = queue.free.large_enough(need, with_out=True)
        if there < demand.count:
            return words.too_few(demand, there, len(queue.free.devices))
        if (problem := self._caps.never(demand)) is not None:
            return words.capped_for_ever(demand, problem)
        if self._keep:
            mine = self._policy.class_of(demand.workload_class)
            kept = [(name, c.reserved) for name, c in self._keep if c.priority > mine.priority]
            if demand.count + sum(n for _, n in kept) > there:
                return words.kept_for_ever(demand, there, kept)
        return None

    def _own_wait(self, demand: Demand, queue: _Queue) -> str | None:
        """Return what it waits for that is not an end of another: devices that are out, or money."""
        usable = queue.free.large_enough(demand.memory_bytes)
        if usable < self._needed(demand, queue):
            out = [each for each in queue.free.devices.values() if each.out is not None]
            return words.out(demand, usable, out)
        return self._caps.spent(demand)

    def _explain_cap(self, demand: Demand, cap: Cap, queue: _Queue) -> None:
        """Say when a limit leaves room for a demand, by the ends that are known."""
        if queue.cap_ends is None:
            queue.cap_ends = self._cap_ends(queue)
        holders = queue.cap_ends.get(cap.key, [])
        over = self._caps.taken(cap) + demand.count - cap.devices
        enough = bisect_left(holders, over, key=itemgetter(0))
        if enough < len(holders):
            _, end_s, key = holders[enough]
            found = _Foreseen(at_s=end_s, after=(key,))
        else:
            found = _Foreseen(at_s=math.inf, after=tuple(key for _, _, key in holders))
        after = words.after(found.after, found.at_s - self._now_s, "")
        why = f"{cap.who} has {self._caps.taken(cap)} of {cap.devices}; {after}"
        self._wait(demand, LATER, why, found)

    def _cap_ends(self, queue: _Queue) -> dict[Key, list[tuple[int, float, str]]]:
        """Return for each limit who frees devices of it, the first one first."""
        found: dict[Key, list[tuple[int, float, str]]] = {}
        freed: Counter[Key] = Counter()
        for end_s, _, each in self._ends(queue):
            for cap in self._caps.caps_of(each.demand):
                freed[cap.key] += len(each.devices)
                found.setdefault(cap.key, []).append((freed[cap.key], end_s, each.demand.key))
        return found

    def _wait(self, demand: Demand, starts: str, why: str, found: _Foreseen | None = None) -> None:
        in_s = found.at_s - self._now_s if found and math.isfinite(found.at_s) else None
        after = found.after[:AFTER_MAX] if found else ()
        waits = Waits(key=demand.key, starts=starts, why=why, in_s=in_s, after=after)
        self.waits[demand.key] = waits
