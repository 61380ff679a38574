"""The memory cgroup of a process: what it counted, and a smaller one below it for a drill.

Version 2 where its memory controller is in use, else version 1. Standard library only: the gang's
parent reads the counters. What cannot be read is reported in words, never guessed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
NOT_READABLE = "not_readable"  # the key under which stands why there are no counters


def find(process: str = "self") -> Path | None:
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


def counters(folder: Path | None) -> dict[str, int | str]:
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


def grown(before: Mapping[str, int | str], now: Mapping[str, int | str]) -> dict[str, int | str]:
    """Return by how much each counter grew; switches and states as they are now."""
    growth: dict[str, int | str] = {}
    for name, value in now.items():
        first = before.get(name, 0)
        is_state = name in ("oom_kill_disable", "under_oom")
        countable = isinstance(value, int) and isinstance(first, int) and not is_state
        growth[name] = int(value) - int(first) if countable else value
    return growth


def make_below(parent: Path, name: str, *, limit_bytes: int) -> Path:
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


def enter(folder: Path) -> None:
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
