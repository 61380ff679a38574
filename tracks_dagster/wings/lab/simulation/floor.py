"""The devices of a play: what is free of them, and whether rules may give what they gave. Pure.

A gang gets all of its devices or none. A device has one holder, or several whose memory fits.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from tracks_dagster.scheduling.model import Demand, Device


class FaultyPlan(Exception):
    """The rules answered what no queue may do."""


@dataclass(slots=True)
class _Place:
    """A device and what is left of it."""

    device: Device
    left_bytes: int
    holders: int = 0
    is_alone: bool = False

    @property
    def free(self) -> float:
        """The share of it that could still be given."""
        if not self.holders:
            return 1.0
        memory = self.device.memory_bytes
        return 0.0 if self.is_alone or not memory else self.left_bytes / memory


@dataclass(slots=True)
class _Kind:
    """The devices of one kind that may be given, and what is asked of them, smallest first."""

    places: list[_Place] = field(default_factory=list)
    whole: int = 0  # devices that nobody holds
    counts: list[int] = field(default_factory=list)
    needs_bytes: list[int] = field(default_factory=list)

    def something_fits(self) -> bool:
        if self.counts and self.counts[0] <= self.whole:
            return True
        if not self.needs_bytes:
            return False
        shared = (place.left_bytes for place in self.places if not place.is_alone)
        return self.needs_bytes[0] <= max(shared, default=0)


class Floor:
    """All devices: what is free of them. Refuses what may not be given."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self._places = {
            each.name: _Place(device=each, left_bytes=each.memory_bytes or 0) for each in devices
        }
        self._kinds: defaultdict[str, _Kind] = defaultdict(_Kind)
        self._memory: dict[str, int] = {}  # of the smallest device of a kind; 0: not known of all
        self.free = 0.0
        for place in self._places.values():
            if place.device.out is None:
                kind = self._kinds[place.device.kind]
                kind.places.append(place)
                kind.whole += 1
                self.free += 1.0
                smallest = self._memory.setdefault(place.device.kind, place.left_bytes)
                self._memory[place.device.kind] = min(smallest, place.left_bytes)

    def bytes_of(self, kind: str, share: float) -> int:
        """Return what a share of a device of that kind is, of the smallest of them."""
        smallest = self._memory.get(kind, 0)
        if not smallest:
            raise ValueError(
                f"A share of a device of kind {kind!r} needs its memory, not known here."
            )
        return max(1, math.floor(share * smallest))

    def wants(self, demand: Demand) -> None:
        """Count what waits."""
        insort(*self._wish(demand))

    def wants_no_more(self, demand: Demand) -> None:
        """Count what waits no longer."""
        wishes, wish = self._wish(demand)
        del wishes[bisect_left(wishes, wish)]

    def something_fits(self) -> bool:
        """Whether anything that waits would find room, if its turn came."""
        return any(kind.something_fits() for kind in self._kinds.values())

    def take(self, demand: Demand, names: Sequence[str]) -> None:
        """Give these devices; raises FaultyPlan where they may not be given."""
        if len(names) != demand.count or len(set(names)) != len(names):
            raise FaultyPlan(f"{demand.key} needs {demand.count} devices and was given {names}.")
        for name in names:
            place = self._places.get(name)
            if place is None or place.device.kind != demand.kind or place.device.out is not None:
                raise FaultyPlan(f"{demand.key} was given {name!r}, which is not for it.")
            if place.holders and (place.is_alone or demand.memory_bytes is None):
                raise FaultyPlan(f"{demand.key} was given {name!r}, which another holds.")
            if demand.memory_bytes is not None and demand.memory_bytes > place.left_bytes:
                raise FaultyPlan(f"{demand.key} was given {name!r}, where its memory is not free.")
        self._change(demand, names, +1)

    def give_back(self, demand: Demand, names: Sequence[str]) -> None:
        """Take back what was given."""
        self._change(demand, names, -1)

    def _change(self, demand: Demand, names: Sequence[str], holders: int) -> None:
        kind = self._kinds[demand.kind]
        for name in names:
            place = self._places[name]
            self.free -= place.free
            kind.whole -= not place.holders
            place.holders += holders
            place.is_alone = holders > 0 and demand.memory_bytes is None
            place.left_bytes -= holders * (demand.memory_bytes or 0)
            kind.whole += not place.holders
            self.free += place.free

    def _wish(self, demand: Demand) -> tuple[list[int], int]:
        kind = self._kinds[demand.kind]
        if demand.memory_bytes is None:
            return kind.counts, demand.count
        return kind.needs_bytes, demand.memory_bytes
