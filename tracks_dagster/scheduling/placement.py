"""What is free of one kind of device, and which of it a gang gets. Pure.

Nodes that have as many devices, and as many of them free, are alike to every placement. They lie in
one bucket, so a choice looks at a few buckets and not at ten thousand devices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from operator import attrgetter
from typing import NamedTuple

from tracks_dagster.scheduling.islands import best_linked
from tracks_dagster.scheduling.model import Demand, Device, Running
from tracks_dagster.scheduling.policy import Placement
from tracks_dagster.scheduling.rooms import Rooms

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
_spot = attrgetter("memory_bytes", "node")  # of a device: its Spot
_BY_RANK = frozenset({Placement.SPREAD, Placement.BALANCED})  # a new choice for each rank


class Inventory:
    """All devices of one kind, free or not: made once for any number of plans, and never changed.

    sizes: devices of each spot; free: their names but for those that are out, spots in the order of the
    devices. spots: of each node; spot_of: each device. totals, out: devices, and those that are out,
    by memory. large: what `FreeDevices.large_enough` has answered.
    """

    def __init__(self, devices: Iterable[Device]) -> None:
        self.devices = {device.name: device for device in devices}
        self.sizes: dict[Spot, int] = {}
        self.free: dict[Spot, dict[str, None]] = {}
        self.spots: dict[str, list[Spot]] = {}
        self.totals: dict[int | None, int] = {}
        self.out: dict[int | None, int] = {}
        self.large: dict[tuple[int | None, bool], int] = {}
        self.spot_of = {name: _spot(device) for name, device in self.devices.items()}
        for name, device in self.devices.items():
            memory, spot = device.memory_bytes, self.spot_of[name]
            self.sizes[spot] = self.sizes.get(spot, 0) + 1
            names = self.free.setdefault(spot, {})
            if device.out is not None:
                self.out[memory] = self.out.get(memory, 0) + 1
            else:
                names[name] = None
        for spot, size in self.sizes.items():
            self.spots.setdefault(spot[1], []).append(spot)
            self.totals[spot[0]] = self.totals.get(spot[0], 0) + size


class FreeDevices:
    """The devices of one kind, as they are taken and given back.

    An empty device is there for everybody. One that is taken is also there for a need that fits into
    the rest of its memory, if `shares`, and the needs of all that hold it are known.
    """

    def __init__(self, known: Inventory, running: Iterable[Running] = (), *, shares: bool) -> None:
        self.devices, self._sizes, self._spots = known.devices, known.sizes, known.spots
        self._totals, self._out, self._large = known.totals, known.out, known.large
        runs = list(running)
        names = list(chain.from_iterable([each.devices for each in runs]))
        holders = dict.fromkeys(names, 1)  # the quick way, where nothing is shared and all is there
        if len(holders) < len(names) or not holders.keys() <= self.devices.keys():
            there = (name for name in names if name in self.devices)
            holders = dict(Counter(there))
        self._holders = holders  # how many hold each device
        taken = set(map(known.spot_of.__getitem__, holders))
        self._shares = shares
        self._rooms = Rooms(self._left_of(runs) if shares else {})
        # never changed but replaced: copies share them, and so do plans
        self._free: dict[Spot, dict[str, None]] = {spot: {} for spot in known.free}
        self._free_counts = dict.fromkeys(self._totals, 0)  # empty devices by memory, and in all
        self._free_count = 0
        self._buckets: dict[int | None, dict[Shape, dict[Spot, None]]] = {
            memory: {} for memory in self._totals
        }  # spots with something free
        for spot, free in known.free.items():
            if spot in taken:
                free = {name: None for name in free if name not in holders}
            if free:
                self._set_free(spot, free)

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
        return {
            name: device.memory_bytes - need
            for name, need in needs.items()
            if name not in unknown
            and (device := self.devices.get(name)) is not None
            and device.memory_bytes is not None
            and device.out is None
        }

    def copy(self) -> FreeDevices:
        """Return the same devices, to be taken and given back apart from these."""
        made = FreeDevices.__new__(FreeDevices)
        made.devices, made._sizes, made._spots = self.devices, self._sizes, self._spots
        made._shares, made._totals, made._out = self._shares, self._totals, self._out
        made._holders, made._rooms = self._holders.copy(), self._rooms.copy()
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
        return self._rooms.count(need)

    def useless(self, demand: Demand) -> int:
        """Return how many empty devices are too small for a demand."""
        return self._free_count - self._empty(demand.memory_bytes)

    def _empty(self, need: int | None) -> int:
        if need is None:
            return self._free_count
        counts = self._free_counts.items()
        return sum([n for memory, n in counts if memory is None or memory >= need])

    def large_enough(self, need: int | None, *, with_out: bool = False) -> int:
        """Return how many devices there are of which one could ever hold that need."""
        found = self._large.get((need, with_out))
        if found is None:
            found = self._large[need, with_out] = sum(
                count - (0 if with_out else self._out.get(memory, 0))
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
        theirs = [self.devices[name] for r in near for name in r.devices if name in self.devices]
        return Near(
            nodes=tuple(dict.fromkeys(device.node for device in theirs)),
            islands=frozenset(island for device in theirs for island in device.islands),
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
        need, chosen = demand.memory_bytes, _Chosen(left=demand.count, near=near or NOWHERE)
        if placement in (Placement.GROUP, Placement.LOCALITY):
            chosen.is_near = self._near_holds(demand, chosen.near)
        if not shared_only:
            self._put_on_empty(need, chosen, placement)
        if chosen.left and demand.count == 1:
            self._put_on_shared(need, chosen)
        assert not chosen.left, "put was asked for more than is available"
        return tuple(chosen.names)

    def take(self, names: Sequence[str], need: int | None) -> None:
        """Take devices, also those that are taken. A name that is not a device is left out."""
        for name in names:
            if name not in self.devices:
                continue
            if name not in self._holders:
                device = self.devices[name]
                self._take_empty(_spot(device), [name], need)
            else:
                self._share(name, need)

    def give_back(self, names: Sequence[str], need: int | None) -> None:
        """Undo a `take`, or the holding of what ran. A name that is not a device is left out."""
        freed: dict[Spot, list[str]] = {}
        for name in names:
            holders = self._holders.get(name)
            if holders is None:
                continue
            left = self._rooms.remove(name)
            if holders > 1:
                self._holders[name] = holders - 1
                if left is not None and need is not None:
                    self._rooms.add(name, left + need)
                continue
            del self._holders[name]
            device = self.devices[name]
            if device.out is None:
                freed.setdefault(_spot(device), []).append(name)
        for spot, new in freed.items():
            self._set_free(spot, {**self._free[spot], **dict.fromkeys(new)})

    def nodes_of(self, names: Iterable[str]) -> list[str]:
        """Return the nodes of these devices, each once."""
        nodes = [self.devices[name].node for name in names if name in self.devices]
        return list(dict.fromkeys(nodes))

    def in_use(self, node: str) -> tuple[int, int]:
        """Return how many devices of a node are not free, and how many it has."""
        spots = self._spots[node]
        size = sum([self._sizes[spot] for spot in spots])
        return size - sum([len(self._free[spot]) for spot in spots]), size

    def _near_holds(self, demand: Demand, near: Near) -> bool:
        """Whether what is near holds the whole gang: half a gang beside its data helps nobody."""
        need = demand.memory_bytes
        empty = sum(len(self._free[spot]) for spot in self._near_spots(need, near))
        return empty >= demand.count or (
            self.rooms(demand) > 0 and any(True for _ in self._near_rooms(need or 0, near))
        )

    def _near_spots(self, need: int | None, near: Near) -> Iterator[Spot]:
        for node in near.nodes:
            for spot in self._spots.get(node, ()):
                if need is None or spot[0] is None or spot[0] >= need:
                    yield spot

    def _near_rooms(self, need: int, near: Near) -> Iterator[str]:
        if near.nodes:
            for name in self._rooms.fitting(need):
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
        left, own = chosen.left, chosen.own
        apart = dict.fromkeys(self._near_spots(need, chosen.near)) if chosen.is_near else {}
        for spot in apart:
            if free := len(self._free[spot]):
                yield View(free, self._sizes[spot], left, own.get(spot, 0), True, spot[0]), [spot]
        groups: dict[View, list[Spot]] = {}
        for spot, count in own.items():
            free = len(self._free[spot])
            if free and spot not in apart:
                view = View(free, self._sizes[spot], left, count, False, spot[0])
                groups.setdefault(view, []).append(spot)
        yield from groups.items()
        apart.update(dict.fromkeys(own))
        for memory, buckets in self._buckets.items():
            if need is not None and memory is not None and memory < need:
                continue
            for (free, size), bucket in buckets.items():
                new = (spot for spot in bucket if spot not in apart) if apart else bucket
                if spots := list(islice(new, left)):
                    yield View(free, size, left, 0, False, memory), spots

    def _names_on(self, spot: Spot, count: int, near: Near) -> list[str]:
        """Return free devices of a spot, those with the best links among them."""
        free = list(self._free[spot])
        if count == len(free):
            return free
        islands = tuple([self.devices[name].islands for name in free])
        return [free[place] for place in best_linked(islands, count, near.islands)]

    def _put_on_shared(self, need: int | None, chosen: _Chosen) -> None:
        """Share a device: one that is near, else the one in which the least memory stays free."""
        assert need is not None, "an unknown need shares nothing"
        fit = chain(self._near_rooms(need, chosen.near), self._rooms.fitting(need))
        for name in islice(fit, 1):
            self._share(name, need)
            chosen.names.append(name)
            chosen.left -= 1

    def _take_empty(self, spot: Spot, names: Sequence[str], need: int | None) -> None:
        free = self._free[spot].copy()
        for name in names:
            free.pop(name, None)
            self._holders[name] = 1
        if self._shares and need is not None and spot[0] is not None:
            for name in names:
                self._rooms.add(name, spot[0] - need)
        self._set_free(spot, free)

    def _share(self, name: str, need: int | None) -> None:
        self._holders[name] += 1
        left = self._rooms.remove(name)
        if left is not None and need is not None:
            self._rooms.add(name, left - need)

    def _set_free(self, spot: Spot, free: dict[str, None]) -> None:
        """Replace what is free of a spot, and move it to the bucket of as many."""
        memory, before, now = spot[0], len(self._free[spot]), len(free)
        buckets, size = self._buckets[memory], self._sizes[spot]
        if before:
            old = buckets[before, size]
            del old[spot]
            if not old:
                del buckets[before, size]
        if now:
            buckets.setdefault((now, size), {})[spot] = None
        self._free[spot] = free
        self._free_counts[memory] += now - before
        self._free_count += now - before


@dataclass(frozen=True, slots=True, kw_only=True)
class Near:
    """What a gang should be close to. keys: of the runs that it named, as words want them."""

    nodes: tuple[str, ...] = ()
    islands: frozenset[str] = frozenset()
    keys: tuple[str, ...] = ()


NOWHERE = Near()


@dataclass(slots=True, kw_only=True)
class _Chosen:
    """What a gang has so far, in one call of `put`. left: ranks that still want a device; is_near:
    what is near holds the whole gang."""

    left: int
    near: Near
    is_near: bool = False
    names: list[str] = field(default_factory=list)
    own: dict[Spot, int] = field(default_factory=dict)

    def add(self, spot: Spot, names: Sequence[str]) -> None:
        self.names += names
        self.left -= len(names)
        self.own[spot] = self.own.get(spot, 0) + len(names)
