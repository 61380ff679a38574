"""The memory that one rank has taken so far, for its journal. Nothing here waits for a device."""

from __future__ import annotations

from pathlib import Path

import torch

from tracks_dagster.track.bodies import MemoryPeak

_STATUS = Path("/proc/self/status")


class MemoryWatch:
    """One rank's memory, from where the libraries are there and the script has built nothing yet."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._base_bytes = of_process("VmRSS:")

    def peak(self) -> MemoryPeak:
        """Return the most that it took so far; of a device by torch's own count. Any thread may."""
        host = {"host_bytes": of_process("VmHWM:"), "host_base_bytes": self._base_bytes}
        is_used = self._device.type == "cuda" and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        if not is_used:
            return MemoryPeak(**host)
        return MemoryPeak(
            **host,
            device_bytes=torch.cuda.max_memory_allocated(self._device),
            reserved_bytes=torch.cuda.max_memory_reserved(self._device),
            total_bytes=torch.cuda.get_device_properties(self._device).total_memory,
        )


def of_process(name: str) -> int | None:
    """Return a figure of this process in bytes; None where the system does not tell."""
    try:
        lines = _STATUS.read_text("ascii").splitlines()
    except OSError:  # not Linux
        return None
    words = next((line.split() for line in lines if line.startswith(name)), None)
    return None if words is None else int(words[1]) * 1024
