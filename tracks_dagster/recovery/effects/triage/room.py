"""Which devices there are for a restart, who has them, and in which order runs should take them.

The accelerators of this machine: as many as a person says (`--devices`, `--device-memory`), else what
`nvidia-smi` lists; and for runs on CPUs the attempts that its Dagster starts at once. Runs on a cluster
are not planned, and take nothing here: it has its own queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tracks_dagster.attempts.machine import Devices, OrphanMemory
from tracks_dagster.recovery.effects.triage.line import Line
from tracks_dagster.recovery.restart_plan import (
    NOW,
    SLOT,
    Candidate,
    Device,
    Occupant,
    Planned,
    plan,
)
from tracks_dagster.recovery.triage import Verdict
from tracks_dagster.track.names import LOCAL

GPU = "gpu"  # the kind of an accelerator
CPU = "cpu"  # the device class, and the accelerator, of a run without one


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a person said of the accelerators. slots: attempts at once on CPUs."""

    devices: int | None = None
    memory_bytes: int | None = None
    slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The devices that a plan is made for, and in words what they are."""

    devices: tuple[Device, ...]
    words: str

    def kind_of(self, line: Line) -> str:
        """Return the kind of device that a run takes: the one it ran on; before that what it asks for,
        and an accelerator where there is one, which a rank takes unasked."""
        if line.accelerator is not None:
            return SLOT if line.accelerator == CPU else GPU
        has_gpus = any(device.kind == GPU for device in self.devices)
        return GPU if has_gpus or line.device_class != CPU else SLOT


def find_room(found: Devices, asked: Asked, orphans: Sequence[OrphanMemory] = ()) -> Room:
    """Return the devices to plan for. Memory that orphans hold is not there until they are gone."""
    slots = [Device(name=f"slot {n}", kind=SLOT) for n in range(1, asked.slots + 1)]
    gpus = _gpus(found, asked, orphans)
    words = f"{asked.slots} attempts at once on CPUs"
    if asked.devices is not None:
        words = f"{_format(asked.devices, asked.memory_bytes, 'as given')}, and {words}"
    elif gpus:
        words = f"{_format(len(gpus), gpus[0].memory_bytes, 'by nvidia-smi')}, and {words}"
    elif found.problem:
        words = f"{words}; accelerators are not known: {found.problem}"
    else:
        words = f"no accelerator on this machine, and {words}"
    return Room(devices=(*gpus, *slots), words=words)


def _gpus(found: Devices, asked: Asked, orphans: Sequence[OrphanMemory]) -> list[Device]:
    memory = asked.memory_bytes
    if asked.devices is not None:
        names = [f"device {number}" for number in range(1, asked.devices + 1)]
        return [Device(name=name, kind=GPU, memory_bytes=memory) for name in names]
    held: Counter[str] = Counter()
    for each in orphans:
        if each.attempt is None:  # an orphaned attempt has its place in the plan
            held[each.uuid] += each.used_bytes or 0
    return [
        Device(
            name=gpu.uuid,
            kind=GPU,
            memory_bytes=None if total is None else max(0, total - held[gpu.uuid]),
        )
        for gpu in found.gpus
        for total in (memory if memory is not None else gpu.total_bytes,)
    ]


def propose(
    lines: Sequence[Line], room: Room, found: Devices, others: Sequence[Line] = ()
) -> tuple[Planned, ...]:
    """Return in which order those of `lines` that are due start, where, and when that can be expected.

    others: were not named, and keep what they have of this machine all the same.
    """
    mine = [line for line in lines if line.launcher == LOCAL]
    theirs = [line for line in others if line.launcher == LOCAL]
    return plan(
        [_candidate(line, order, room) for order, line in enumerate(mine) if line.is_due],
        room.devices,
        _occupants([line for line in (*mine, *theirs) if _has_devices(line)], room, found),
    )


def kept_by_nobody(
    planned: Sequence[Planned], lines: Sequence[Line], room: Room
) -> tuple[str, ...]:
    """Return the runs that do not start now, and that no queue holds back: Dagster's own knows the
    attempts at once, and nothing of devices."""
    slots = {line.run_id for line in lines if room.kind_of(line) == SLOT}
    return tuple(p.run_id for p in planned if p.starts != NOW and p.run_id not in slots)


def _has_devices(line: Line) -> bool:
    return line.verdict in (Verdict.ALIVE.word, Verdict.ORPHANED.word)


def _candidate(line: Line, order: int, room: Room) -> Candidate:
    kind = room.kind_of(line)
    return Candidate(
        run_id=line.run_id,
        kind=kind,
        is_interrupted=line.standing != "queued",
        order=order,
        ranks=1 if kind == SLOT else line.ranks,
        memory_bytes=None if kind == SLOT else line.memory_bytes,
        left_s=line.left_s,
    )


def _occupants(lines: Sequence[Line], room: Room, found: Devices) -> list[Occupant]:
    """Give those that run the devices that they hold, by their pids, else the ones least taken: what a
    person gave has no name that a pid could be found on."""
    taken: Counter[str] = Counter({device.name: 0 for device in room.devices})
    occupants = []
    for line in lines:
        kind = room.kind_of(line)
        pids = {pid for sign in line.signs for pid in _pids(sign.data)}
        holds = [each for each in found.holders if each.pid in pids] if kind == GPU else []
        names = [each.uuid for each in holds if each.uuid in taken]
        if not names:
            names = [d.name for d in room.devices if d.kind == kind]
            names = sorted(names, key=lambda name: taken[name])[: 1 if kind == SLOT else line.ranks]
        taken.update(names)
        sizes = [each.used_bytes for each in holds if each.used_bytes is not None]
        occupants.append(
            Occupant(
                run_id=line.run_id,
                devices=tuple(names),
                memory_bytes=max(sizes, default=line.memory_bytes),
                left_s=line.left_s,
            )
        )
    return occupants


def _pids(data: object) -> set[int]:
    """Return the pids of the ranks that live, from a verdict's evidence."""
    ranks = data.get("ranks", ()) if isinstance(data, dict) else ()
    return {rank["pid"] for rank in ranks if rank["lives"]}


def _format(count: int, memory_bytes: int | None, how: str) -> str:
    memory = "" if memory_bytes is None else f" of {memory_bytes / 2**30:.0f} GiB"
    return f"{count} device{'s' if count != 1 else ''}{memory} {how}"
