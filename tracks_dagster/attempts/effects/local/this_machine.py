"""The machine that this process runs on: its boot, its processes, its devices. Reads only.

`nvidia-smi` is asked where there is one, for a bounded time: a driver that hangs is reported as a
problem and delays nobody, not even where it hangs so fast that its process cannot be killed.
"""

from __future__ import annotations

import os
import platform
import pwd
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from tracks_dagster.attempts.device_links import Islands, parse_islands
from tracks_dagster.attempts.machine import (
    GPU_FIELDS,
    HOLDER_FIELDS,
    DeviceHolder,
    Devices,
    Gpu,
    MachineNow,
    gone_devices,
    parse_gpus,
    parse_holders,
    parse_slices,
    pool_devices,
)
from tracks_dagster.processes.process import boot_id, find_process
from tracks_dagster.scheduling.devices_given import DevicesGiven, is_uuid
from tracks_dagster.scheduling.leases import Found, Here

NVIDIA_SMI = "nvidia-smi"
KILL_S_MAX = 0.5  # a process inside a driver that hangs does not end; it is left behind then
NVIDIA_SMI_S_MAX = 3.0  # of each question; well under a second each on a sound machine
# By its manual: no device was found, the driver is not loaded, its library is not there. Then there is
# none; any other failure says nothing of them.
NONE_FOUND = 6
NO_DEVICES = frozenset({NONE_FOUND, 9, 12})
MACHINE_ID = Path("/etc/machine-id")  # systemd's; the same through reboots


class ThisMachine:
    """Implements `ports.Machine`."""

    def look(self, pids: Iterable[int]) -> MachineNow:
        """Return the boot, and when each of `pids` that lives was started."""
        found = {pid: find_process(pid) for pid in set(pids)}
        return MachineNow(
            node=platform.node(),
            boot_id=boot_id(),
            booted_at=_booted_at(),
            living={pid: process.started for pid, process in found.items() if process is not None},
        )

    def devices(self) -> Devices:
        """Ask `nvidia-smi`; a machine without it has no devices, and no problem."""
        if shutil.which(NVIDIA_SMI) is None:
            return Devices()
        try:
            gpus = parse_gpus(_query("gpu", GPU_FIELDS))
            holders = parse_holders(_query("compute-apps", HOLDER_FIELDS))
            slices = parse_slices(_ask("-L"))
        except (OSError, subprocess.SubprocessError) as error:
            code = error.returncode if isinstance(error, subprocess.CalledProcessError) else None
            problem = f"{NVIDIA_SMI} did not answer: {error}"
            may_be_there = code not in NO_DEVICES
            return Devices(problem=problem, may_be_there=may_be_there, says_none=code == NONE_FOUND)
        return Devices(
            gpus=tuple(replace(gpu, slices=slices.get(gpu.uuid, ())) for gpu in gpus),
            holders=tuple(replace(each, owner=_owner(each)) for each in holders),
        )


def this_pool(node: str) -> Here:
    """Return which machine this is, for who holds its devices. node: its host name."""
    try:
        machine_id = MACHINE_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        machine_id = ""
    return Here(node=node, boot_id=boot_id(), machine_id=machine_id)


def find_devices(given: DevicesGiven, node: str, leased: frozenset[str]) -> Found:
    """Return the devices to give out now; asks `nvidia-smi` only where accelerators are given."""
    found = Devices() if given.hides_gpus or given.names == () else ThisMachine().devices()
    found = replace(found, gpus=_with_islands(found.gpus))
    return pool_devices(given, found, node=node, cpus=os.cpu_count() or 1, leased=leased)


def find_gone(given: DevicesGiven, names: Collection[str]) -> tuple[str, ...]:
    """Return those of `names` that are devices and not on this machine any more, as far as its driver
    tells; asks `nvidia-smi` only for what may be one of its devices."""
    if given.hides_gpus or not any(map(is_uuid, names)):
        return ()
    return gone_devices(given, ThisMachine().devices(), names)


def _with_islands(gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """Add how they are linked; nothing where there is one, or the driver does not tell."""
    if len(gpus) < 2:
        return gpus
    with suppress(OSError, subprocess.SubprocessError):
        islands = _islands(tuple(gpu.uuid for gpu in gpus))
        return tuple(replace(gpu, islands=own) for gpu, own in zip(gpus, islands, strict=True))
    return gpus


@lru_cache(8)
def _islands(uuids: tuple[str, ...]) -> tuple[Islands, ...]:
    """Ask once in a process: what is plugged in stays where it is. A failure is asked again."""
    return parse_islands(_ask("topo", "-m"), len(uuids))


def _owner(holder: DeviceHolder) -> str:
    try:
        return pwd.getpwuid(Path(f"/proc/{holder.pid}").stat().st_uid).pw_name
    except (OSError, KeyError):
        return ""


def _query(what: str, fields: Sequence[str]) -> str:
    return _ask(f"--query-{what}={','.join(fields)}", "--format=csv,noheader,nounits")


def _ask(*question: str) -> str:
    asked = subprocess.Popen(
        [NVIDIA_SMI, *question],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        errors="replace",
    )
    try:
        answer, _ = asked.communicate(timeout=NVIDIA_SMI_S_MAX)
    except subprocess.TimeoutExpired:
        asked.kill()
        with suppress(subprocess.TimeoutExpired):
            asked.wait(KILL_S_MAX)
        if asked.stdout is not None:
            asked.stdout.close()
        raise
    if asked.returncode != 0:
        raise subprocess.CalledProcessError(asked.returncode, NVIDIA_SMI)
    return answer


def _booted_at() -> datetime | None:
    """Return when the machine was booted, by the clock of now; None elsewhere than on Linux."""
    if sys.platform != "linux":
        return None
    for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
        if line.startswith("btime "):
            return datetime.fromtimestamp(int(line.split()[1]), UTC)
    return None
