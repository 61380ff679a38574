"""The order in which interrupted and queued runs start again on the devices that there are. Pure.

Interrupted runs come before queued ones: their checkpoints age and their steps are paid for. Among them
the one with the least time left comes first: of all orders this one has the smallest sum of completion
times (shortest processing time first; W. E. Smith, Naval Research Logistics Quarterly 3, 1956), so
results come in and devices get free as early as possible. Queued runs keep the order in which they were
declared. Nobody overtakes: a run that does not fit keeps those behind it that want the same kind of
device waiting, or a large one would wait for ever.

A rank takes a device, each of one run another one. Where the memory of the device and the need of the
run are both known, runs share a device as long as their needs fit; else a rank takes the device alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

NOW = "now"
LATER = "later"
NEVER = "never"
SLOT = "slot"  # the kind of a place on CPUs: one attempt, whatever memory it takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One place for a rank. memory_bytes: what runs may take of it; None: not known, one rank only.

    kind: which candidates it is for.
    """

    name: str
    kind: str = ""
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupant:
    """A run that has devices now. left_s: until it frees them, None where nobody knows."""

    run_id: str
    devices: tuple[str, ...]
    memory_bytes: int | None
    left_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A run that wants to start. order: place by declaration; memory_bytes: of one rank, if known.

    kind: of the devices that it runs on.
    """

    run_id: str
    kind: str = ""
    is_interrupted: bool
    order: int
    ranks: int
    memory_bytes: int | None
    left_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """When a run starts. position: 1-based; starts: NOW, LATER or NEVER.

    starts_in_s: expected, None where it is not known; after: the runs whose end makes room.
    """

    run_id: str
    position: int
    starts: str
    starts_in_s: float | None
    devices: tuple[str, ...]
    after: tuple[str, ...]
    why: str


@dataclass(slots=True)
class _Stay:
    """One rank's stay on a device, from `begin_s` to `end_s` (infinite where nobody knows)."""

    run_id: str
    memory_bytes: int | None
    begin_s: float
    end_s: float

    def is_there(self, at_s: float) -> bool:
        return self.begin_s <= at_s < self.end_s


@dataclass(slots=True)
class _Room:
    """A device and who stays on it when."""

    device: Device
    stays: list[_Stay] = field(default_factory=list)

    def fits(self, need: int | None, at_s: float) -> bool:
        there = [stay for stay in self.stays if stay.is_there(at_s)]
        if not there:
            return self.is_large_enough(need)
        needs = [need, *(stay.memory_bytes for stay in there)]
        if self.device.memory_bytes is None or None in needs:
            return False
        return sum(each or 0 for each in needs) <= self.device.memory_bytes

    def is_large_enough(self, need: int | None) -> bool:
        """Whether it fits on the device when nobody else is there."""
        total = self.device.memory_bytes
        return need is None or total is None or need <= total


def plan(
    candidates: Sequence[Candidate], devices: Sequence[Device], occupants: Sequence[Occupant] = ()
) -> tuple[Planned, ...]:
    """Return every candidate in the order proposed, with when and where it starts."""
    rooms = {device.name: _Room(device=device) for device in devices}
    for occupant in occupants:
        _stay(rooms, occupant.devices, occupant.run_id, occupant.memory_bytes, 0.0, occupant.left_s)
    planned: list[Planned] = []
    floors_s: dict[str, float] = {}  # by kind: nobody starts before the one ahead of it
    for position, candidate in enumerate(in_order(candidates), start=1):
        one = _place(candidate, position, rooms, floors_s.get(candidate.kind, 0.0))
        if one.starts == LATER:
            later_s = one.starts_in_s if one.starts_in_s is not None else math.inf
            floors_s[candidate.kind] = later_s
        if one.starts_in_s is not None:
            begin_s = one.starts_in_s
            need = candidate.memory_bytes
            _stay(rooms, one.devices, one.run_id, need, begin_s, candidate.left_s)
        planned.append(one)
    return tuple(planned)


def in_order(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates, first to start first; what is not known to be near its end comes last."""

    def rank(each: Candidate) -> tuple[bool, float, int, str]:
        left_s = each.left_s if each.is_interrupted and each.left_s is not None else math.inf
        return (not each.is_interrupted, left_s, each.order, each.run_id)

    return sorted(candidates, key=rank)


def _place(candidate: Candidate, position: int, rooms: dict[str, _Room], floor_s: float) -> Planned:
    """Return when the candidate starts: at the first end of another from which on it fits."""
    planned = partial(Planned, run_id=candidate.run_id, position=position)
    there = [room for room in rooms.values() if room.device.kind == candidate.kind]
    usable = [room for room in there if room.is_large_enough(candidate.memory_bytes)]
    if len(usable) < candidate.ranks:
        found = "none is known here: give --devices and --device-memory"
        if there:
            found = f"of {len(there)} here {len(usable)} are large enough"
        why = f"needs {_need(candidate)}; {found}"
        return planned(starts=NEVER, starts_in_s=None, devices=(), after=(), why=why)
    ends = {stay.end_s for room in there for stay in room.stays}
    for at_s in sorted(t for t in {floor_s, *ends} if floor_s <= t < math.inf):
        free = [r for r in usable if r.fits(candidate.memory_bytes, at_s)][: candidate.ranks]
        if len(free) == candidate.ranks:
            names = tuple(room.device.name for room in free)
            gone = _gone(there, at_s)
            starts = NOW if at_s == 0 else LATER
            why = f"{_need(candidate)} free" if starts == NOW else f"after {' and '.join(gone)}"
            return planned(starts=starts, starts_in_s=at_s, devices=names, after=gone, why=why)
    waits_for = _endless(there)
    why = f"after {' or '.join(waits_for)}, whose end nobody knows" if waits_for else "in its turn"
    return planned(starts=LATER, starts_in_s=None, devices=(), after=waits_for, why=why)


def _gone(rooms: Sequence[_Room], at_s: float) -> tuple[str, ...]:
    """Return the runs that end just then."""
    ending = {stay.run_id for room in rooms for stay in room.stays if stay.end_s == at_s}
    return tuple(sorted(ending))


def _endless(rooms: Sequence[_Room]) -> tuple[str, ...]:
    stays = (stay for room in rooms for stay in room.stays)
    return tuple(sorted({stay.run_id for stay in stays if stay.end_s == math.inf}))


def _need(candidate: Candidate) -> str:
    if candidate.kind == SLOT:
        return f"1 {SLOT}"
    devices = "1 device" if candidate.ranks == 1 else f"{candidate.ranks} devices"
    if candidate.memory_bytes is None:
        return f"{devices} alone"
    return f"{devices} with {candidate.memory_bytes / 2**30:.1f} GiB"


def _stay(
    rooms: dict[str, _Room],
    names: Sequence[str],
    run_id: str,
    memory_bytes: int | None,
    begin_s: float,
    left_s: float | None,
) -> None:
    end_s = math.inf if left_s is None else begin_s + left_s
    for name in names:
        stay = _Stay(run_id=run_id, memory_bytes=memory_bytes, begin_s=begin_s, end_s=end_s)
        if name in rooms:
            rooms[name].stays.append(stay)
