"""What the machine did to a gang: memory events of its cgroup, lines of the kernel. Decides nothing.

The gang's parent looks once at the start and at every end: counters are given as their growth. What
cannot be read is reported in words, never guessed. Standard library only.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from tracks_dagster.processes.process import read_json

_ROOT = Path("/sys/fs/cgroup")  # version 2 where its memory controller is in use, else version 1
NOT_READABLE = "not_readable"  # the key of why there are no counters
DRILL_CGROUP = "drill/cgroup.json"  # in the gang's folder: the path of a cgroup that a drill made
# Where the kernel's log can be read it names who was killed.
_NAMES_OUR_OOM = re.compile(r"Killed process|oom-kill:")
_LOG = Path("/dev/kmsg")
LINES_MAX = 20
RECORD_BYTES_MAX = 8192
READ_S_MAX = 1.0
SLACK_S = 2.0  # the kernel's clock of its log and the monotonic clock are not quite the same
_NOT_READABLE = "kernel log not readable"
_OF_INTEREST = re.compile(
    r"NVRM: Xid|SXid|\[Hardware Error\]|\bmce: |fallen off the bus|uncorrectable (ECC|NVLink)"
    r"|Out of memory: Kill|out of memory: Kill|oom-kill:|I/O error|segfault at",
    re.IGNORECASE,
)
_NVIDIA = Path("/proc/driver/nvidia/gpus")
DEVICES_MAX = 256
_UUID = re.compile(r"^GPU UUID:\s+(GPU-[0-9A-Za-z-]+)\s*$", re.MULTILINE)
_PLACE = re.compile(r"\(PCI:([0-9a-fA-F:.]{7,20})\)")
_PID = re.compile(r"(?:Killed process |\bpid[=:] ?'?|\[)(\d+)\b")


class MachineWatch:
    """One gang's machine, from the gang's start on."""

    def __init__(self, work: Path, devices: Collection[str] = ()) -> None:
        """Look at the machine as it is now. devices: that the gang was given, by name; none: any."""
        self._work = work
        self._devices = frozenset(devices)
        self._places = read_device_places()
        self._cgroup = find_cgroup()
        self._began_s = time.monotonic()
        self._before = read_counters(self._cgroup)
        self._of_drill: dict[str, int | str] = {}

    def report_since_start(self, pids: Collection[int], *, is_killed: bool) -> dict[str, Any]:
        """Return what happened since the start; pids: of the gang's processes.

        is_killed: whether the first of its ranks to end did so by SIGKILL. Where nobody may read the
        kernel's log, a kill in a cgroup that others share counts as this gang's only then.
        """
        grown = growth(self._before, read_counters(self._cgroup))
        lines = kernel_lines_since(self._began_s, pids)
        lines = of_devices(lines, self._places, self._devices)
        is_ours = any(_NAMES_OUR_OOM.search(line) for line in lines) or (
            is_killed and is_unreadable(lines)
        )
        if grown.get("oom_kill") and not is_ours:
            grown["oom_kill_unclear"] = grown.pop("oom_kill")  # of somebody else in the same cgroup
        drill = self._drill_cgroup()
        if drill is not None and drill.exists():
            self._of_drill = {f"drill.{k}": v for k, v in read_counters(drill).items()}
        return {
            "cgroup": {**grown, **self._of_drill},
            "kernel_lines": lines,
        }

    def close(self) -> None:
        """Remove the cgroup that a drill made, once nothing lives in it."""
        drill = self._drill_cgroup()
        if drill is not None and drill.exists():
            drill.rmdir()

    def _drill_cgroup(self) -> Path | None:
        cgroup_file = read_json(self._work / DRILL_CGROUP)
        return Path(cgroup_file["path"]) if cgroup_file is not None else None


def kernel_lines_since(began_s: float, pids: Collection[int]) -> list[str]:
    """Return the newest lines since `began_s` (monotonic) that name a process of `pids`, or none.

    A machine is shared: a line that names a process of somebody else is left out.

    A log that may not be read gives one line, which says so.
    """
    try:
        descriptor = os.open(_LOG, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        return [f"{_NOT_READABLE}: {_LOG}: {error.strerror}"]
    try:
        found = [line for at_s, line in _kernel_records(descriptor) if at_s >= began_s - SLACK_S]
    finally:
        os.close(descriptor)
    return [line for line in found if _OF_INTEREST.search(line) and _is_ours(line, pids)][
        -LINES_MAX:
    ]


def read_device_places() -> dict[str, str]:
    """Return the UUIDs of this machine's NVIDIA devices by their places on the bus, as the driver has
    them: "0000:3b:00" → "GPU-…". Nothing where there is no such driver."""
    found = {}
    for file in sorted(_NVIDIA.glob("*/information"))[:DEVICES_MAX]:
        try:
            uuid = _UUID.search(file.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue
        if uuid is not None:
            found[_bus(file.parent.name)] = uuid[1]
    return found


def of_devices(
    lines: Iterable[str], places: Mapping[str, str], devices: Collection[str]
) -> list[str]:
    """Return the lines that are not of a device that somebody else was given, and after them which
    device is at each place that they name."""
    own = {name for name in devices if name.startswith("GPU-")}
    kept, named = [], {}
    for line in lines:
        place = _PLACE.search(line)
        uuid = places.get(_bus(place[1])) if place is not None else None
        if uuid is not None and own and uuid not in own:
            continue
        kept.append(line)
        if place is not None and uuid is not None:
            named[place[1]] = uuid
    return [*kept, *(f"PCI:{place} is {uuid}" for place, uuid in named.items())]


def _bus(place: str) -> str:
    """Return a place on the bus as lines of the kernel have it, without the function: "0000:3b:00"."""
    return place.lower().partition(".")[0]


def is_unreadable(lines: Collection[str]) -> bool:
    """Whether that is what `kernel_lines_since` returned."""
    return any(line.startswith(_NOT_READABLE) for line in lines)


def _kernel_records(descriptor: int) -> list[tuple[float, str]]:
    """Return (seconds since boot, text) of every record; see Documentation/ABI/testing/dev-kmsg."""
    records = []
    deadline = time.monotonic() + READ_S_MAX
    while time.monotonic() < deadline:
        try:
            record = os.read(descriptor, RECORD_BYTES_MAX)
        except BlockingIOError:  # read to the end
            break
        except OSError:  # EPIPE: overwritten while it was read; the next one follows
            continue
        head, _, text = record.decode("utf-8", errors="replace").partition(";")
        fields = head.split(",")
        if len(fields) > 2 and fields[2].isdigit():
            records.append((int(fields[2]) / 1e6, text.split("\n", 1)[0]))
    return records


def _is_ours(line: str, pids: Collection[int]) -> bool:
    named = {int(number) for number in _PID.findall(line)}
    return not named or bool(named & set(pids))


def find_cgroup(process: str = "self") -> Path | None:
    """Return the folder of the process's memory cgroup, or None where there is none to be seen."""
    try:
        lines = Path(f"/proc/{process}/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        roots = [_ROOT / "memory"] if "memory" in controllers.split(",") else []
        if not controllers:  # version 2
            roots = [_ROOT, _ROOT / "unified"]
        for root in roots:
            for folder in (root / path.lstrip("/"), root):  # a container sees its own as the root
                if _counters_file(folder) is not None:
                    return folder
    return None


def read_counters(folder: Path | None) -> dict[str, int | str]:
    """Return what the cgroup counted so far: "oom_kill" among them, or why it cannot be read."""
    file = _counters_file(folder) if folder is not None else None
    if folder is None or file is None:
        return {NOT_READABLE: "no memory cgroup is to be seen from here"}
    try:
        pairs = [line.split() for line in file.read_text().splitlines()]
        found: dict[str, int | str] = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}
        failures = folder / "memory.failcnt"
        if failures.exists():  # version 1
            found["failcnt"] = int(failures.read_text())
    except (OSError, ValueError) as error:
        return {NOT_READABLE: f"{file}: {error}"}
    return found


def growth(before: Mapping[str, int | str], now: Mapping[str, int | str]) -> dict[str, int | str]:
    """Return by how much each counter grew; switches and states as they are now."""
    grown: dict[str, int | str] = {}
    for name, value in now.items():
        first = before.get(name, 0)
        is_state = name in ("oom_kill_disable", "under_oom")
        countable = isinstance(value, int) and isinstance(first, int) and not is_state
        grown[name] = int(value) - int(first) if countable else value
    return grown


def make_cgroup(parent: Path, name: str, *, limit_bytes: int) -> Path:
    """Make a cgroup below `parent` with that limit on its memory; raises OSError where one may not."""
    folder = parent / name
    folder.mkdir()
    try:
        version_1 = folder / "memory.limit_in_bytes"
        limit = version_1 if version_1.exists() else folder / "memory.max"
        if not limit.exists():  # version 2 gives a group none while its parent has processes itself
            raise OSError(
                f"{folder} has no limit of its own; the parent's controller is not shared"
            )
        limit.write_text(str(limit_bytes))
        swap = folder / "memory.swap.max"
        if swap.exists():
            swap.write_text("0")
    except OSError:
        folder.rmdir()
        raise
    return folder


def enter_cgroup(folder: Path) -> None:
    """Move the calling process into the cgroup; what it has allocated stays counted where it was."""
    (folder / "cgroup.procs").write_text(str(os.getpid()))


def _counters_file(folder: Path) -> Path | None:
    for name in ("memory.events", "memory.oom_control"):
        try:
            if (folder / name).exists():
                return folder / name
        except OSError:  # a container may not look into it
            continue
    return None
