"""What is free of one kind of device, and which of it a gang gets. Pure.

Nodes that have as many devices, and as many of them free, are alike to every placement. They lie in
one bucket, so a choice looks at a few buckets and not at ten thousand devices.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby, islice
from operator import attrgetter
from typing import NamedTuple

from tracks_dagster.scheduling.islands import best_linked
from tracks_dagster.scheduling.model import Demand, Device, Running
from tracks_dagster.scheduling.policy import Placement

Spot = tuple[int | None, str]  # memory of each device, and node: what is alike on one machine
Shape = tuple[int, int]  # of a spot: devices that are free, of how many


class View(NamedTuple):
    """One spot as a placement looks at it. left: ranks that still want a device; own: ranks of the
    same gang that got one here; is_near: it is what the gang asked to be close to.

    A tuple, since a plan makes thousands of them.
    """

    free: int
    size: int
    left: int
    own: int
    is_near: bool
    memory_bytes: int | None


Score = tuple[float, ...]  # the greatest one is taken


def score_pack(view: View) -> Score:
    """Prefer the fullest node that holds the rest of the gang, else the one that holds most of it."""
    holds = view.free >= view.left
    return holds, view.own > 0, -(view.memory_bytes or 0), -view.free if holds else view.free


def score_spread(view: View) -> Score:
    """Prefer the node with the fewest ranks of this gang, then the one with the most free."""
    return -view.own, -(view.memory_bytes or 0), view.free


def score_balanced(view: View) -> Score:
    """Prefer the node of which the smallest part is in use once the rank is there."""
    return -(view.size - view.free + 1) / view.size, -(view.memory_bytes or 0), view.free


def score_near(view: View) -> Score:
    """Prefer what the gang asked to be close to: its trainer (group), or its data (locality)."""
    return view.is_near, *score_pack(view)


SCORES: Mapping[Placement, Callable[[View], Score]] = {
    Placement.PACK: score_pack,
    Placement.SPREAD: score_spread,
    Placement.BALANCED: score_balanced,
    Placement.GROUP: score_near,
    Placement.LOCALITY: score_near,
}
_BY_RANK = frozenset({Placement.SPREAD, Placement.BALANCED})  # a new choice for each rank


class FreeDevices:
    """The devices of one kind, as they are taken and given back.

    An empty device is there for everybody. One that is taken is also there for a need that fits into
    the rest of its memory, if `shares`, and the needs of all that hold it are known.
    """

    def __init__(
        self, devices: Iterable[Device], running: Iterable[Running] = (), *, shares: bool
    ) -> None:
        self.devices = {device.name: device for device in devices}
        self._shares = shares
        runs = list(running)
        held = Counter(chain.from_iterable(each.devices for each in runs))
        for gone in held.keys() - self.devices.keys():  # from its machine
            del held[gone]
        self._holders = dict(held)  # how many hold each device
        self._left = self._left_of(runs) if shares else {}  # memory, of what can be shared
        self._free: dict[
            Spot, dict[str, None]
        ] = {}  # never changed but replaced: copies share them
        self._sizes: Counter[Spot] = Counter()
        self._out: Counter[int | None] = Counter()  # devices that are out, by memory
        for spot, group in groupby(self.devices.values(), key=attrgetter("memory_bytes", "node")):
            there = list(group)
            usable = [device.name for device in there if device.out is None]
            self._sizes[spot] += len(there)
            if len(usable) < len(there):
                self._out[spot[0]] += len(there) - len(usable)
            new = [name for name in usable if name not in self._holders]
            self._free.setdefault(spot, {}).update(dict.fromkeys(new))
        self._rooms = sorted((left, name) for name, left in self._left.items())
        self._spots: dict[str, list[Spot]] = {}  # of each node
        self._totals: Counter[int | None] = Counter()  # devices by memory
        self._free_counts: dict[int | None, int] = {}  # empty devices by memory, and in all
        self._free_count = 0
        self._large: dict[tuple[int | None, bool], int] = {}  # what `large_enough` has answered
        self._buckets: dict[int | None, dict[Shape, dict[Spot, None]]] = {}
        for spot, free in self._free.items():
            size = self._sizes[spot]
            self._spots.setdefault(spot[1], []).append(spot)
            self._totals[spot[0]] += size
            self._free_counts[spot[0]] = self._free_counts.get(spot[0], 0) + len(free)
            self._free_count += len(free)
            buckets = self._buckets.setdefault(spot[0], {})
            buckets.setdefault((len(free), size), {})[spot] = None

    def _left_of(self, running: Iterable[Running]) -> dict[str, int]:
        """Return the memory that is left of the devices of which all needs are known."""
        needs: dict[str, int] = {}
        unknown: set[str] = set()
        for each in running:
            need = each.demand.memory_bytes
            if need is None:
                unknown.update(each.devices)
                continue
            for name in each.devices:
                needs[name] = needs.get(name, 0) + need
        left = {}
        for name, need in needs.items():
            device = self.devices.get(name)
            if device is None or device.memory_bytes is None or device.out is not None:
                continue
            if name not in unknown:
                left[name] = device.memory_bytes - need
        return left

    def copy(self) -> FreeDevices:
        """Return the same devices, to be taken and given back apart from these."""
        made = FreeDevices.__new__(FreeDevices)
        made.devices, made._sizes, made._spots = self.devices, self._sizes, self._spots
        made._shares, made._totals, made._out = self._shares, self._totals, self._out
        made._holders, made._left = self._holders.copy(), self._left.copy()
        made._rooms = self._rooms.copy()
        made._free = self._free.copy()
        made._free_counts, made._free_count = self._free_counts.copy(), self._free_count
        made._large = self._large
        made._buckets = {
            memory: {shape: spots.copy() for shape, spots in buckets.items()}
            for memory, buckets in self._buckets.items()
        }
        return made

    def available(self, demand: Demand) -> int:
        """Return how many devices a demand could have now, shared ones included."""
        return self._empty(demand.memory_bytes) + self.rooms(demand)

    def rooms(self, demand: Demand) -> int:
        """Return how many devices that others hold a demand could share.

        Only a single rank shares one: kernels of two processes take turns on a device, and a gang is
        as slow as its slowest rank.
        """
        need = demand.memory_bytes
        if need is None or demand.count > 1:
            return 0
        return len(self._rooms) - bisect_left(self._rooms, (need, ""))

    def useless(self, demand: Demand) -> int:
        """Return how many empty devices are too small for a demand."""
        return self._free_count - self._empty(demand.memory_bytes)

    def _empty(self, need: int | None) -> int:
        if need is None:
            return self._free_count
        return sum(n for memory, n in self._free_counts.items() if memory is None or memory >= need)

    def large_enough(self, need: int | None, *, with_out: bool = False) -> int:
        """Return how many devices there are of which one could ever hold that need."""
        found = self._large.get((need, with_out))
        if found is None:
            found = self._large[need, with_out] = sum(
                count - (0 if with_out else self._out[memory])
                for memory, count in self._totals.items()
                if need is None or memory is None or memory >= need
            )
        return found

    def could_hold(self, names: Iterable[str], need: int | None) -> bool:
        """Whether one of these devices could ever hold that need."""
        sizes = (self.devices[name].memory_bytes for name in names if name in self.devices)
        return any(need is None or size is None or size >= need for size in sizes)

    def is_shared(self, names: Iterable[str]) -> bool:
        """Whether others hold one of these devices too."""
        return any(self._holders.get(name, 0) > 1 for name in names)

    def near_nodes(self, names: Iterable[str]) -> Near:
        """Return the nodes of these names that have devices of this kind."""
        return Near(nodes=tuple(name for name in names if name in self._spots))

    def near_runs(self, running: Iterable[Running]) -> Near:
        """Return where these run."""
        near = tuple(running)
        held = [self.devices[name] for r in near for name in r.devices if name in self.devices]
        return Near(
            nodes=tuple(dict.fromkeys(device.node for device in held)),
            islands=frozenset(island for device in held for island in device.islands),
            keys=tuple(each.demand.key for each in near),
        )

    @property
    def nodes(self) -> Collection[str]:
        """The nodes that have devices of this kind."""
        return self._spots.keys()

    def put(
        self,
        demand: Demand,
        placement: Placement,
        near: Near | None = None,
        *,
        shared_only: bool = False,
    ) -> tuple[str, ...]:
        """Take the devices of a demand and return them; `available` must be enough for it.

        shared_only: leave the empty ones.
        """
        need, chosen = demand.memory_bytes, _Chosen(count=demand.count, near=near or NOWHERE)
        if placement in (Placement.GROUP, Placement.LOCALITY):
            chosen.is_near = self._near_holds(demand, chosen.near)
        if not shared_only:
            self._put_on_empty(need, chosen, placement)
        if chosen.left and demand.count == 1:
            self._put_on_shared(need, chosen)
        assert not chosen.left, "put was asked for more than is available"
        return tuple(chosen.names)

    def take(self, names: Sequence[str], need: int | None) -> None:
        """Take devices, also those that are taken. A name that is no device is left out."""
        for name in names:
            if name not in self.devices:
                continue
            if name not in self._holders:
                device = self.devices[name]
                self._take_empty((device.memory_bytes, device.node), [name], need)
            else:
                self._share(name, need)

    def give_back(self, names: Sequence[str], need: int | None) -> None:
        """Undo a `take`, or the holding of what ran. A name that is no device is left out."""
        before: dict[Spot, int] = {}
        for name in names:
            holders = self._holders.get(name)
            if holders is None:
                continue
            left = self._left.pop(name, None)
            if left is not None:
                del self._rooms[bisect_left(self._rooms, (left, name))]
            if holders > 1:
                self._holders[name] = holders - 1
                if left is not None and need is not None:
                    self._add_room(name, left + need)
                continue
            del self._holders[name]
            device = self.devices[name]
            if device.out is None:
                spot = (device.memory_bytes, device.node)
                before.setdefault(spot, len(self._free[spot]))
                self._free[spot] = {**self._free[spot], name: None}
        for spot, count in before.items():
            self._moved(spot, count)

    def nodes_of(self, names: Iterable[str]) -> Counter[str]:
        """Return how many of these devices each node has."""
        return Counter(self.devices[name].node for name in names if name in self.devices)

    def in_use(self, node: str) -> tuple[int, int]:
        """Return how many devices of a node are not free, and how many it has."""
        spots = self._spots[node]
        size = sum(self._sizes[spot] for spot in spots)
        return size - sum(len(self._free[spot]) for spot in spots), size

    def _near_holds(self, demand: Demand, near: Near) -> bool:
        """Whether what is near holds the whole gang: half a gang beside its data helps nobody."""
        need = demand.memory_bytes
        empty = sum(len(self._free[spot]) for spot in self._near_spots(need, near))
        return empty >= demand.count or (
            self.rooms(demand) > 0 and any(True for _ in self._near_rooms(need, near))
        )

    def _near_spots(self, need: int | None, near: Near) -> Iterator[Spot]:
        for node in near.nodes:
            for spot in self._spots.get(node, ()):
                if need is None or spot[0] is None or spot[0] >= need:
                    yield spot

    def _near_rooms(self, need: int | None, near: Near) -> Iterator[str]:
        for _, name in self._rooms[bisect_left(self._rooms, (need or 0, "")) :]:
            if self.devices[name].node in near.nodes:
                yield name

    def _put_on_empty(self, need: int | None, chosen: _Chosen, placement: Placement) -> None:
        score = SCORES[placement]
        while chosen.left:
            best = max(self._views(need, chosen), key=lambda each: score(each[0]), default=None)
            if best is None or (chosen.is_near and not best[0].is_near):
                return  # what is near and shared comes before what is far and empty
            view, alike = best
            by_rank = placement in _BY_RANK
            for spot in alike:  # as long as they are alike they stay the best ones
                if by_rank or view.free <= chosen.left:
                    self._put_on_spot(spot, 1 if by_rank else view.free, need, chosen)
                elif spot is alike[0]:
                    self._put_on_spot(spot, chosen.left, need, chosen)
                if chosen.left < (1 if by_rank else view.free):
                    break

    def _put_on_spot(self, spot: Spot, count: int, need: int | None, chosen: _Chosen) -> None:
        names = self._names_on(spot, count, chosen.near)
        self._take_empty(spot, names, need)
        chosen.add(spot, names)

    def _views(self, need: int | None, chosen: _Chosen) -> Iterator[tuple[View, list[Spot]]]:
        """Yield the spots that have something free, those that are alike together."""
        apart = dict.fromkeys(self._near_spots(need, chosen.near)) if chosen.is_near else {}
        for spot in apart:
            if free := len(self._free[spot]):
                yield self._view(spot, free, chosen, is_near=True), [spot]
        groups: dict[tuple[int, int, int, int | None], list[Spot]] = {}
        for spot, own in chosen.own.items():
            free = len(self._free[spot])
            if free and spot not in apart:
                groups.setdefault((own, free, self._sizes[spot], spot[0]), []).append(spot)
        for (_, free, _, _), spots in groups.items():
            yield self._view(spots[0], free, chosen, is_near=False), spots
        apart.update(dict.fromkeys(chosen.own))
        for memory, buckets in self._buckets.items():
            if need is not None and memory is not None and memory < need:
                continue
            for (free, _), bucket in buckets.items():
                if free:
                    new = (spot for spot in bucket if spot not in apart)
                    if spots := list(islice(new, chosen.left)):
                        yield self._view(spots[0], free, chosen, is_near=False), spots

    def _view(self, spot: Spot, free: int, chosen: _Chosen, *, is_near: bool) -> View:
        return View(
            free=free,
            size=self._sizes[spot],
            left=chosen.left,
            own=chosen.own.get(spot, 0),
            is_near=is_near,
            memory_bytes=spot[0],
        )

    def _names_on(self, spot: Spot, count: int, near: Near) -> list[str]:
        """Return free devices of a spot, those with the best links among them."""
        free = self._free[spot]
        if count == len(free):
            return list(free)
        devices = [self.devices[name] for name in free]
        return [device.name for device in best_linked(devices, count, near.islands)]

    def _put_on_shared(self, need: int | None, chosen: _Chosen) -> None:
        """Share devices: near ones, then those in which the least memory stays free."""
        assert need is not None, "an unknown need shares nothing"
        begin, end = bisect_left(self._rooms, (need, "")), None
        if not chosen.near.nodes:
            end = begin + chosen.count  # the gang's own devices may be among them
        fit = [name for _, name in self._rooms[begin:end]]
        fit.sort(key=lambda name: self.devices[name].node not in chosen.near.nodes)
        taken = set(chosen.names)
        for name in [name for name in fit if name not in taken][: chosen.left]:
            self._share(name, need)
            chosen.names.append(name)

    def _take_empty(self, spot: Spot, names: Sequence[str], need: int | None) -> None:
        free = self._free[spot].copy()
        before = len(free)
        for name in names:
            free.pop(name, None)
            self._holders[name] = 1
            if self._shares and need is not None and spot[0] is not None:
                self._add_room(name, spot[0] - need)
        self._free[spot] = free
        self._moved(spot, before)

    def _share(self, name: str, need: int | None) -> None:
        self._holders[name] += 1
        left = self._left.pop(name, None)
        if left is not None:
            del self._rooms[bisect_left(self._rooms, (left, name))]
            if need is not None:
                self._add_room(name, left - need)

    def _add_room(self, name: str, left: int) -> None:
        self._left[name] = left
        insort(self._rooms, (left, name))

    def _moved(self, spot: Spot, before: int) -> None:
        """Move a spot to the bucket of what is free on it now."""
        now, size = len(self._free[spot]), self._sizes[spot]
        self._free_counts[spot[0]] += now - before
        self._free_count += now - before
        buckets = self._buckets[spot[0]]
        old = buckets[before, size]
        del old[spot]
        if not old:
            del buckets[before, size]
        buckets.setdefault((now, size), {})[spot] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Near:
    """What a gang should be close to. keys: of the runs that it named, as words want them."""

    nodes: tuple[str, ...] = ()
    islands: frozenset[str] = frozenset()
    keys: tuple[str, ...] = ()


NOWHERE = Near()


@dataclass(slots=True, kw_only=True)
class _Chosen:
    """What a gang has so far, in one call of `put`. is_near: what is near holds all of it."""

    count: int
    near: Near
    is_near: bool = False
    names: list[str] = field(default_factory=list)
    own: Counter[Spot] = field(default_factory=Counter)

    @property
    def left(self) -> int:
        return self.count - len(self.names)

    def add(self, spot: Spot, names: Sequence[str]) -> None:
        self.names += names
        self.own[spot] += len(names)
