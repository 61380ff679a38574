"""One rank's device and process, looked at every ten seconds: the figures of a `device` line.

Of an NVIDIA GPU by the driver's library NVML, where the extra `gpu` (nvidia-ml-py) is installed, and
of the rank's own device only; else what torch and /proc know. The driver is asked by a thread of its
own: one that hangs costs its figures, never a step, a heartbeat or the shipping of a journal. The
memory that the rank has taken so far is torch's and the system's own count, and waits for nothing.
"""

from __future__ import annotations

import importlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from tracks_dagster.track.bodies import MemoryPeak
from tracks_dagster.track.records import Json
from tracks_dagster.track.text.redact import Redact
from tracks_dagster.track.text.safe_text import one_line, visible

LOOK_EVERY_S = 10.0
STALE_S = 30.0  # what the driver said longer ago is not passed on
PROBLEM_CHARS_MAX = 200
XIDS_MAX = 16  # that are taken in at one look
NOT_INSTALLED = (
    "nvidia-ml-py is not installed: utilisation, power, temperature and Xids are unknown; "
    "pip install 'tracks-dagster[gpu]'"
)
# Why clocks are below their highest; nvml.h, nvmlClocksEventReasons. Idle clocks are not a reason.
THROTTLES = {
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
PLAYED_UTIL_PERCENT = 3.0  # of a device that a drill makes idle

Figures = dict[str, Json]


class DeviceWatch:
    """The figures of one rank. newest: those of the last look, {} before the first.

    computes: whether this process is the one that trains; else it only waits for the one that does.
    work: a folder on the disk that the gang writes to. clean: takes secrets out of what a driver says.
    """

    def __init__(self, device: torch.device, work: Path, *, computes: bool, clean: Redact) -> None:
        self.newest: Mapping[str, Json] = {}
        self._device = device
        self._computes = computes
        self._work = work
        self._clean = clean
        self._is_idle_by_drill = False
        self._nvml: NvmlWatch | None = None
        self._looked_at_s = time.monotonic()
        self._cpu_s = time.process_time()

    def look(self) -> Mapping[str, Json]:
        """Return the figures as they are now; only one thread may call it."""
        found = {**self._of_device(), **self._of_process(), **self._of_disk()}
        if self._is_idle_by_drill:
            found |= {"util_percent": PLAYED_UTIL_PERCENT, "drill": "idle_device"}
        self.newest = found
        return found

    def play_idle(self) -> None:
        """Say from now on that the device is hardly used."""
        self._is_idle_by_drill = True

    def close(self) -> None:
        """Ask the driver no more."""
        if self._nvml is not None:
            self._nvml.close()

    def _of_device(self) -> Figures:
        is_used = self._device.type == "cuda" and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        if not is_used:
            return {}
        properties = torch.cuda.get_device_properties(self._device)
        found: Figures = {
            "uuid": f"GPU-{properties.uuid}",
            "name": properties.name,
            "memory_total_bytes": properties.total_memory,
        }
        if self._computes:
            found["memory_bytes"] = torch.cuda.memory_reserved(self._device)
        if self._nvml is None:
            self._nvml = NvmlWatch(str(properties.uuid))
        figures, problem = self._nvml.newest()
        if problem:
            found["problem"] = self._clean(visible(one_line(problem)))[:PROBLEM_CHARS_MAX]
        return {**found, **figures}

    def _of_process(self) -> Figures:
        if not self._computes:
            return {}
        now_s, cpu_s = time.monotonic(), time.process_time()
        passed_s = max(now_s - self._looked_at_s, 1e-3)
        percent = round(100.0 * (cpu_s - self._cpu_s) / passed_s, 1)
        self._looked_at_s, self._cpu_s = now_s, cpu_s
        figures = {"rss_bytes": of_process("VmRSS:"), "read_bytes": _read_so_far()}
        return {"cpu_percent": percent, **{k: v for k, v in figures.items() if v is not None}}

    def _of_disk(self) -> Figures:
        try:
            return {"disk_free_bytes": shutil.disk_usage(self._work).free}
        except OSError:
            return {}


def _read_so_far() -> int | None:
    """Return the bytes that this process has read by calls, files in the page cache included."""
    try:
        lines = Path("/proc/self/io").read_text("ascii").splitlines()
    except OSError:
        return None
    words = next((line.split() for line in lines if line.startswith("rchar:")), None)
    return None if words is None else int(words[1])


class NvmlWatch:
    """Asks NVML for one device, in a thread that nobody waits for.

    uuid: as torch has it, without what it begins with. load: imports the library.
    """

    def __init__(
        self,
        uuid: str,
        *,
        load: Callable[[], Any] = lambda: importlib.import_module("pynvml"),
        every_s: float = LOOK_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._uuid = uuid
        self._load = load
        self._every_s = every_s
        self._clock = clock
        self._answer: tuple[Figures, str] = ({}, "")
        self._answered_at_s = clock()
        self._closing = threading.Event()
        threading.Thread(target=self._run, name="nvml", daemon=True).start()

    def newest(self) -> tuple[Figures, str]:
        """Return the newest figures, and what is wrong, in words; never waits."""
        figures, problem = self._answer
        silent_s = self._clock() - self._answered_at_s
        if silent_s > STALE_S and not problem:
            return {}, f"NVML has not answered for {silent_s:.0f} s"
        return figures, problem

    def close(self) -> None:
        """Ask no more; a call that hangs is left to the end of the process."""
        self._closing.set()

    def _run(self) -> None:
        try:
            nvml = self._load()
        except ImportError:
            self._answer = ({}, NOT_INSTALLED)
            return
        try:
            nvml.nvmlInit()
            device = _NvmlDevice(nvml, self._uuid)
            while True:
                self._answer = (device.look(), "")
                self._answered_at_s = self._clock()
                if self._closing.wait(self._every_s):
                    return
        except nvml.NVMLError as error:
            self._answer = ({}, f"NVML: {error}")


class _NvmlDevice:
    """One device, found by its UUID: no other is asked anything."""

    def __init__(self, nvml: Any, uuid: str) -> None:
        """Raise NVMLError where the driver knows no such device."""
        self._nvml = nvml
        try:
            self._handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        except nvml.NVMLError:
            self._handle = nvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")
        self._xid: int | None = None
        self._events: Any = None
        with self._where_readable():
            events = nvml.nvmlEventSetCreate()
            nvml.nvmlDeviceRegisterEvents(self._handle, nvml.nvmlEventTypeXidCriticalError, events)
            self._events = events

    def look(self) -> Figures:
        """Return what the device can tell; raises NVMLError where it is lost."""
        nvml, handle = self._nvml, self._handle
        found: Figures = {}
        # Every device has a memory: one that does not say how much is lost.
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        found |= {"memory_bytes": memory.used, "memory_total_bytes": memory.total}
        with self._where_readable():
            found["util_percent"] = float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        with self._where_readable():
            found["power_w"] = nvml.nvmlDeviceGetPowerUsage(handle) / 1e3
        with self._where_readable():
            celsius = nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
            found["temperature_c"] = float(celsius)
        with self._where_readable():
            reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
            names = [name for bit, name in THROTTLES.items() if reasons & bit]
            found |= {"throttled": names} if names else {}
        with self._where_readable():
            found["ecc"] = nvml.nvmlDeviceGetTotalEccErrors(
                handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
            )
        with self._where_readable():
            self._take_xids()
        return found if self._xid is None else {**found, "xid": self._xid}

    def _take_xids(self) -> None:
        """Take in the Xids since the last look; ends with an error where there is no further one."""
        if self._events is None:
            return
        for _ in range(XIDS_MAX):
            event = self._nvml.nvmlEventSetWait_v2(self._events, 0)  # ms
            self._xid = int(event.eventData)

    @contextmanager
    def _where_readable(self) -> Iterator[None]:
        """Leave out what this device or driver does not tell, such as all use of a MIG slice."""
        try:
            yield
        except (self._nvml.NVMLError, AttributeError):
            return


# --- the memory that it has taken -----------------------------------------------------------------


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
