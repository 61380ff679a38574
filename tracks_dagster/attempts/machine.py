"""One machine as it reports itself: its boot, its processes, the memory of its devices. Pure.

Device memory is read from two answers of `nvidia-smi`, both with --format=csv,noheader,nounits (memory
is in MiB then):

    nvidia-smi --query-gpu=uuid,name,memory.total,memory.used
    nvidia-smi --query-compute-apps=pid,process_name,gpu_uuid,used_gpu_memory

In a container the second one may name nobody, or pids of another namespace: memory in use that nobody
is named for is reported as such.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

GPU_FIELDS = ("uuid", "name", "memory.total", "memory.used")
HOLDER_FIELDS = ("pid", "process_name", "gpu_uuid", "used_gpu_memory")
MIB = 1024 * 1024
UNNAMED_BYTES_MIN = 1024 * MIB  # a driver takes some hundred MiB for itself, in nobody's name


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
    """One device. used_bytes: by whomever, as the driver counts; None where it does not tell."""

    uuid: str
    name: str
    total_bytes: int | None
    used_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHolder:
    """One process that holds memory of a device. used_bytes: None where the driver does not tell."""

    pid: int
    process: str
    uuid: str
    used_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """The devices of one machine and the processes on them. problem: why they are not known."""

    gpus: tuple[Gpu, ...] = ()
    holders: tuple[DeviceHolder, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanMemory:
    """Device memory that no living attempt accounts for. pid: None where nobody is named for it.

    attempt: the one that the process is a rank of, as RUN/aNN; None where it is no rank of any.
    """

    uuid: str
    device: str
    used_bytes: int | None
    pid: int | None
    process: str
    attempt: str | None
    words: str


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
        words=f"pid {holder.pid} ({holder.process}), {whose}",
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
