"""Keeps Dagster's daemon alive while a command uses it."""

from __future__ import annotations

import time
from collections.abc import Callable

from tracks_dagster.home.dagster_home import DagsterHome

RESTART_S = 2.0  # from one start of a daemon that died to the next, doubled up to
RESTART_S_MAX = 60.0


class DaemonKeeper:
    """Starts the daemon again should it have died: a run is not lost with it.

    One that dies again and again is started less and less often.
    """

    def __init__(self, home: DagsterHome, tell: Callable[[str], None]) -> None:
        self._home = home
        self._tell = tell
        self._pause_s = RESTART_S
        self._next_at = 0.0

    def keep(self) -> None:
        """Start the daemon if none lives and it is time to."""
        now = time.monotonic()
        if now < self._next_at:
            return
        if not self._home.ensure_daemon():
            self._pause_s = RESTART_S
            return
        self._tell(self._home.why_daemon_ended())
        self._next_at = now + self._pause_s
        self._pause_s = min(self._pause_s * 2, RESTART_S_MAX)
