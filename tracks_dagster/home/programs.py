"""Which of Dagster's programs serve a home on this machine, and by which classes.

By themselves they are Dagster's own, but for two small classes: the web server behind our guard, and
a launcher that also knows whether a run's process lives. A wing may bring faster ones (`Wing.home`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

WEBSERVER = "tracks_dagster.defs.resources.webserver"
LAUNCHER = ("tracks_dagster.defs.resources.stock_run_launcher", "StockRunLauncher")
# Until a run that was launched has begun; then it counts as failed. Longer than a code server is
# waited for: a launch that is not answered in time is not given up at that moment.
START_S_MAX = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """daemon, webserver: what follows `python -m`; behind the daemon's comes the workspace's file.

    launcher: module and class; start_s_max: until a run that it launched has begun. storage: the part
    of dagster.yaml on storage in files of that folder. has_code_server: the daemon takes a second
    argument, how addresses begin: it serves the code there, for the web server too, and warm parents
    of runs and gangs. Else each program loads the code itself.
    """

    daemon: tuple[str, ...] = ("dagster._daemon", "run", "--workspace")
    webserver: str = WEBSERVER
    launcher: tuple[str, str] = LAUNCHER
    start_s_max: int = START_S_MAX
    storage: Callable[[Path], str] = lambda folder: ""
    has_code_server: bool = False
