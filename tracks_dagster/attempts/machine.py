"""One machine as it reports itself: its boot, its processes, the memory of its devices. Pure.

Device memory is read from two answers of `nvidia-smi`, both with --format=csv,noheader,nounits (memory
is in MiB then):

    nvidia-smi --query-gpu=uuid,name,memory.total,memory.used
    nvidia-smi --query-compute-apps=pid,process_name,gpu_uuid,used_gpu_memory

In a container the second one may name nobody, or pids of another namespace: memory in use that nobody
is named for is reported as such. The slices that a device was cut into are in a third, `nvidia-smi -L`.

What gangs and evals are given are its devices: GPUs or their slices where there are any, which every
local rank takes unasked, else slots on its CPUs. TRACKS_DEVICES says otherwise.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from tracks_dagster.scheduling.devices_given import CPU, DevicesGiven, is_uuid
from tracks_dagster.scheduling.leases import PRETENDED, Found
from tracks_dagster.scheduling.model import Device

GPU_FIELDS = ("uuid", "name", "memory.total", "memory.used")
HOLDER_FIELDS = ("pid", "process_name", "gpu_uuid", "used_gpu_memory")
MIB = 1024 * 1024
UNNAMED_BYTES_MIN = 1024 * MIB  # a driver takes some hundred MiB for itself, in nobody's name
CPU_SLOTS = 16  # without accelerators, or one for each CPU if that is more: plenty


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessId:
    """One process of one boot of one machine: a pid alone is given again.

    started: seconds, since boot on Linux, else since 1970.
    """

    pid: int
    started: float
    boot_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineNow:
    """One look at a machine. living: pid → when that process started, of those asked for that live.

    booted_at: None where the system does not tell.
    """

    node: str
    boot_id: str
    booted_at: datetime | None = None
    living: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One device. used_bytes: by whomever, as the driver counts; None where it does not tell.

    slices: the UUIDs of those that it was cut into (MIG); then it is used by them only. islands: of
    devices that reach each other fast, the fastest link first; () where the driver does not tell.
    """

    uuid: str
    name: str
    total_bytes: int | None
    used_bytes: int | None
    slices: tuple[str, ...] = ()
    islands: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHolder:
    """One process that holds memory of a device. used_bytes: None where the driver does not tell.

    owner: the user that it runs as; empty where nobody can tell.
    """

    pid: int
    process: str
    uuid: str
    used_bytes: int | None
    owner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """The devices of one machine and the processes on them. problem: why they are not known.

    may_be_there: with a problem, whether there may be devices anyway: nobody has said that not.
    says_none: whether the driver itself says that there is none.
    """

    gpus: tuple[Gpu, ...] = ()
    holders: tuple[DeviceHolder, ...] = ()
    problem: str | None = None
    may_be_there: bool = False
    says_none: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanMemory:
    """Device memory that no living attempt accounts for. pid: None where nobody is named for it.

    attempt: the one that the process is a rank of, as RUN/aNN; None where it is not a rank of any.
    """

    uuid: str
    device: str
    used_bytes: int | None
    pid: int | None
    process: str
    attempt: str | None
    words: str


def pool_devices(
    given: DevicesGiven, found: Devices, *, node: str, cpus: int, leased: Collection[str]
) -> Found:
    """Return the devices to give; `out` those in use by a process that was not given them.

    leased: those that have a holder of ours. Where accelerators may be there and nobody can tell,
    none is given: a gang that starts beside one that was not seen takes its memory.
    """
    if given.pretended is not None:
        return Found(devices=_numbered(PRETENDED, given.pretended, node))
    if given.slots is not None:
        return Found(devices=_numbered(CPU, given.slots, node))
    if found.problem is not None and (found.may_be_there or given.names):
        return Found(problem=f"the devices of this machine are not known: {found.problem}")
    named = given.names or ()
    if not found.gpus and named and all(map(is_uuid, named)):  # of a kind not known here
        return Found(devices=tuple(Device(name=name, node=node) for name in named))
    gone = gone_devices(given, found, leased)
    if not found.gpus or given.names == ():
        slots = _numbered(CPU, max(CPU_SLOTS, cpus), node)
        return Found(devices=slots, gone=gone, instead=found.problem)
    there = [
        Device(
            name=name,
            node=node,
            model=gpu.name,
            memory_bytes=None if gpu.slices else gpu.total_bytes,
            islands=() if gpu.slices else gpu.islands,
            out=None if name in leased else _stranger(gpu, found.holders),
        )
        for number, gpu in enumerate(found.gpus)
        for name in (gpu.slices or (gpu.uuid,))
        if given.names is None or _is_named(given.names, number, gpu.uuid, name)
    ]
    if not there:
        listed = ", ".join(given.names or ())
        problem = f"none of the devices {listed} is on this machine, by nvidia-smi"
        return Found(problem=problem, gone=gone)
    return Found(devices=tuple(there), gone=gone)


def gone_devices(given: DevicesGiven, found: Devices, names: Collection[str]) -> tuple[str, ...]:
    """Return those of `names` that the driver does not list any more; none where it does not tell.

    A driver that was reset may give none of its devices back, and a device fall off its bus. A driver
    that is not loaded, after a boot, says nothing of them.
    """
    if not found.gpus and (not found.says_none or given.names is not None):
        return ()
    there = {uuid for gpu in found.gpus for uuid in (gpu.uuid, *gpu.slices)}
    return tuple(name for name in names if is_uuid(name) and name not in there)


def _numbered(name: str, count: int, node: str) -> tuple[Device, ...]:
    kind = CPU if name == CPU else ""
    return tuple(Device(name=f"{name}:{n}", kind=kind, node=node) for n in range(count))


def _is_named(names: Collection[str], number: int, uuid: str, name: str) -> bool:
    """Whether a device or slice is one of those named: by UUID, by the start of one, or by number."""
    return any(
        wanted == str(number) or (not wanted.isdigit() and each.startswith(wanted))
        for wanted in names
        for each in (uuid, name)
    )


def _stranger(gpu: Gpu, holders: Iterable[DeviceHolder]) -> str | None:
    """Say who holds memory of a device that nobody was given; None where it is free."""
    if gpu.slices:
        return None  # the driver counts by device, and does not tell which slice it is
    on_it = [each for each in holders if each.uuid == gpu.uuid]
    large = [each for each in on_it if (each.used_bytes or 0) >= UNNAMED_BYTES_MIN]
    if large:
        largest = max(large, key=lambda each: each.used_bytes or 0)
        size = describe_size(largest.used_bytes)
        return f"{_process(largest)} holds {size} of it, given to nobody here"
    unknown = next((each for each in on_it if each.used_bytes is None), None)
    if unknown is not None:
        return _unknown_stranger(gpu, unknown, sum(each.used_bytes or 0 for each in on_it))
    unnamed = _unnamed(gpu, holders)
    return f"{describe_size(unnamed.used_bytes)} of it is held {unnamed.words}" if unnamed else None


def _unknown_stranger(gpu: Gpu, holder: DeviceHolder, known_bytes: int) -> str | None:
    """Say that a process whose memory the driver does not tell may hold what nobody else does.

    known_bytes: of the others. None where that is too little to matter.
    """
    given, own = "given to nobody here", f"{_process(holder)} is on it"
    if gpu.used_bytes is None:
        return f"{own}, and how much it holds is not known; {given}"
    if gpu.used_bytes - known_bytes < UNNAMED_BYTES_MIN:
        return None
    return f"{own}, of which {describe_size(gpu.used_bytes)} are in use, {given}"


def _process(holder: DeviceHolder) -> str:
    """Return a process with its owner: "pid 4711 (python) of ada"."""
    of = f" of {holder.owner}" if holder.owner else ""
    return f"pid {holder.pid} ({holder.process}){of}"


def describe_size(size_bytes: int | None) -> str:
    """Return a size in words: "9.8 GiB"; "memory" where the driver does not tell."""
    return "memory" if size_bytes is None else f"{size_bytes / 2**30:.1f} GiB"


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """Read the answer to the first question; lines of another shape are left out."""
    return tuple(
        Gpu(uuid=uuid, name=name, total_bytes=_bytes(total), used_bytes=_bytes(used))
        for uuid, name, total, used in _rows(text, len(GPU_FIELDS))
    )


def parse_holders(text: str) -> tuple[DeviceHolder, ...]:
    """Read the answer to the second question; lines of another shape are left out."""
    return tuple(
        DeviceHolder(pid=int(pid), process=process, uuid=uuid, used_bytes=_bytes(used))
        for pid, process, uuid, used in _rows(text, len(HOLDER_FIELDS))
        if pid.isdigit()
    )


def parse_slices(text: str) -> dict[str, tuple[str, ...]]:
    """Read the answer to the third question: the UUIDs of each device's slices, by its own."""
    found: dict[str, tuple[str, ...]] = {}
    device = ""
    for line in text.splitlines():
        uuid = _LISTED.search(line)
        if uuid is None:
            continue
        if uuid[1].startswith("MIG-"):
            found[device] = (*found.get(device, ()), uuid[1])
        else:
            device = uuid[1]
    return found


_LISTED = re.compile(r"\(UUID: ([^)\s]+)\)")


def orphan_memory(
    devices: Devices, ranks: Mapping[int, str], alive: Collection[str]
) -> tuple[OrphanMemory, ...]:
    """Return memory that no rank of an alive attempt accounts for.

    ranks: pid → attempt, of the processes that live and are ranks; alive: attempts with that verdict.
    """
    names = {gpu.uuid: gpu.name for gpu in devices.gpus}
    named = [
        _named(each, names.get(each.uuid, "a device"), ranks.get(each.pid))
        for each in devices.holders
        if ranks.get(each.pid) not in alive
    ]
    unnamed = [_unnamed(gpu, devices.holders) for gpu in devices.gpus]
    return (*named, *(each for each in unnamed if each is not None))


def _named(holder: DeviceHolder, device: str, attempt: str | None) -> OrphanMemory:
    whose = f"a rank of {attempt}, which is not alive" if attempt else "no rank of an open attempt"
    return OrphanMemory(
        uuid=holder.uuid,
        device=device,
        used_bytes=holder.used_bytes,
        pid=holder.pid,
        process=holder.process,
        attempt=attempt,
        words=f"{_process(holder)}, {whose}",
    )


def _unnamed(gpu: Gpu, holders: Iterable[DeviceHolder]) -> OrphanMemory | None:
    used = [each.used_bytes for each in holders if each.uuid == gpu.uuid]
    if gpu.used_bytes is None or None in used:
        return None
    rest = gpu.used_bytes - sum(each or 0 for each in used)
    if rest < UNNAMED_BYTES_MIN:
        return None
    return OrphanMemory(
        uuid=gpu.uuid,
        device=gpu.name,
        used_bytes=rest,
        pid=None,
        process="",
        attempt=None,
        words="in nobody's name: a process of another container or user, or one that is ending",
    )


def _rows(text: str, count: int) -> Iterator[list[str]]:
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) == count:
            yield [cell.strip() for cell in row]


def _bytes(mib: str) -> int | None:
    """Return the size, or None for what the driver does not tell ("[N/A]", "[Not Supported]")."""
    return int(mib) * MIB if mib.isdigit() else None
