"""Dagster's own run launcher, which also knows whether a run's process lives.

`dagster.yaml` names it where `TRACKS_DAGSTER` is `stock`. Dagster's code server starts each run and
notices when its process dies, but forgets both when it ends itself: such a run would be listed as
started for ever, and its attempt would wait for a supervisor that never comes. So Dagster's monitoring
asks here.
"""

import os
import signal
from contextlib import suppress

from dagster import DagsterRun
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._core.launcher.base import CheckRunHealthResult
from dagster._core.launcher.default_run_launcher import DefaultRunLauncher

from tracks_dagster.defs.resources.run_processes import find_run_process, health_of_process


class StockRunLauncher(DefaultRunLauncher):
    """Implements Dagster's run launcher on this machine."""

    @property
    def supports_check_run_worker_health(self) -> bool:
        """Tell Dagster's run monitoring to ask."""
        return True

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        """Look whether the run's process lives."""
        return health_of_process(self._instance, run)

    def terminate(self, run_id: str) -> bool:
        """Ask the run to end, by its code server; where that is gone, by a signal to its process."""
        try:
            return bool(super().terminate(run_id))  # type: ignore[no-untyped-call]
        except DagsterUserCodeUnreachableError:
            run = self._instance.get_run_by_id(run_id)
            process = None if run is None else find_run_process(self._instance, run)
            if process is None:
                return False
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)
            return True
