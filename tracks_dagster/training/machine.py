"""What the machine did to a gang: memory events of its cgroup, lines of the kernel. Decides nothing.

The gang's parent looks once at the start and at every end: counters are told as what they grew by.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from tracks_dagster.attempts.effects.local.processes import read_json
from tracks_dagster.training import kernel_log, memory_cgroup

DRILL_CGROUP = "drill/cgroup.json"  # in the gang's folder: the path of a cgroup that a drill made
# Where the kernel's log can be read it names who was killed.
_NAMES_OUR_OOM = re.compile(r"Killed process|oom-kill:")


class Machine:
    """One gang's machine, from the gang's start on."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self._cgroup = memory_cgroup.find()
        self._began_s = time.monotonic()
        self._before = memory_cgroup.counters(self._cgroup)
        self._of_drill: dict[str, int | str] = {}

    def tell(self, pids: Collection[int], *, is_killed: bool) -> dict[str, Any]:
        """Return what happened since the start; pids: of the gang's processes.

        is_killed: whether the first of its ranks to end did so by SIGKILL. Where nobody may read the
        kernel's log, a kill in a cgroup that others share counts as this gang's only then.
        """
        grown = memory_cgroup.grown(self._before, memory_cgroup.counters(self._cgroup))
        lines = kernel_log.lines_since(self._began_s, pids)
        is_ours = any(_NAMES_OUR_OOM.search(line) for line in lines) or (
            is_killed and kernel_log.is_unreadable(lines)
        )
        if grown.get("oom_kill") and not is_ours:
            grown["oom_kill_unclear"] = grown.pop("oom_kill")  # of somebody else in the same cgroup
        drill = self._drill_cgroup()
        if drill is not None and drill.exists():
            self._of_drill = {f"drill.{k}": v for k, v in memory_cgroup.counters(drill).items()}
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
        told = read_json(self._work / DRILL_CGROUP)
        return Path(told["path"]) if told is not None else None
