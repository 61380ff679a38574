"""The machine that this process runs on: its boot, its processes, its devices. Reads only.

`nvidia-smi` is asked where there is one, for a bounded time: a driver that hangs is reported as a
problem and delays nobody, not even where it hangs so fast that its process cannot be killed.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from tracks_dagster.attempts.effects.local import processes
from tracks_dagster.attempts.machine import (
    GPU_FIELDS,
    HOLDER_FIELDS,
    Devices,
    MachineNow,
    parse_gpus,
    parse_holders,
)

NVIDIA_SMI = "nvidia-smi"
KILL_S_MAX = 0.5  # a process inside a driver that hangs does not end; it is left behind then
NVIDIA_SMI_S_MAX = 3.0  # of each of two questions; it takes well under a second on a sound machine


class ThisMachine:
    """Implements `ports.Machine`."""

    def look(self, pids: Iterable[int]) -> MachineNow:
        """Return the boot, and when each of `pids` that lives was started."""
        found = {pid: processes.find_process(pid) for pid in set(pids)}
        return MachineNow(
            node=platform.node(),
            boot_id=processes.boot_id(),
            booted_at=_booted_at(),
            living={pid: process.started for pid, process in found.items() if process is not None},
        )

    def devices(self) -> Devices:
        """Ask `nvidia-smi`; a machine without it has no devices, and no problem."""
        if shutil.which(NVIDIA_SMI) is None:
            return Devices()
        try:
            gpus = parse_gpus(_ask("gpu", GPU_FIELDS))
            holders = parse_holders(_ask("compute-apps", HOLDER_FIELDS))
        except (OSError, subprocess.SubprocessError) as error:
            return Devices(problem=f"{NVIDIA_SMI} did not answer: {error}")
        return Devices(gpus=gpus, holders=holders)


def _ask(what: str, fields: Sequence[str]) -> str:
    command = [NVIDIA_SMI, f"--query-{what}={','.join(fields)}", "--format=csv,noheader,nounits"]
    asked = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace"
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
