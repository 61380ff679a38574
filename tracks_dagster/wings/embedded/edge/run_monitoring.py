"""Dagster's daemon that watches runs, which also looks whether what is to begin can still come.

By itself Dagster looks at the clock alone while a run starts. On a machine that is overloaded a launch
takes longer than any limit that suits a lost one: it would be thrown away, paid again, and add to the
load. So a run whose process lives is waited for (`RUN_START_S_MAX`), and one without is given up soon.
"""

import logging
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from dagster import DagsterInstance, DagsterRunStatus, RunRecord, RunsFilter
from dagster._core.workspace.context import IWorkspaceProcessContext
from dagster._daemon.daemon import DaemonIterator, MonitoringDaemon
from dagster._daemon.utils import DaemonErrorCapture

from tracks_dagster.defs.resources.run_processes import find_run_process, recorded_process
from tracks_dagster.track.names import TAG_LAUNCH
from tracks_dagster.wings.embedded.edge.run_launcher import LAUNCHED, ProcessRunLauncher

# Without a process: a launcher that was killed left none, and one at work needs up to a minute or two.
UNLAUNCHED = timedelta(minutes=10)
GONE = timedelta(seconds=30)  # a process that ended may have written its run's end a moment ago
_BEGINNING = [DagsterRunStatus.NOT_STARTED, DagsterRunStatus.STARTING]


class RunMonitoringDaemon(MonitoringDaemon):
    """Dagster's daemon, and a look at the runs that begin before each of its own."""

    def run_iteration(
        self, workspace_process_context: IWorkspaceProcessContext[Any]
    ) -> DaemonIterator:
        """Give up what cannot begin any more, then do as Dagster does."""
        yield from give_up_lost_starts(workspace_process_context.instance, self._logger)
        yield from super().run_iteration(workspace_process_context)


def give_up_lost_starts(instance: DagsterInstance, logger: logging.Logger) -> Iterator[Any]:
    """End each run as failed that is to begin and has no process any more."""
    if not isinstance(instance.run_launcher, ProcessRunLauncher):
        return  # on a cluster the launcher itself looks at its pods
    for record in instance.get_run_records(RunsFilter(statuses=_BEGINNING)):
        try:
            problem = why_lost(instance, record, datetime.now(UTC))
            if problem is not None:
                run = record.dagster_run
                logger.info(f"Run {run.run_id} is given up: {problem}")
                instance.add_run_tags(run.run_id, {TAG_LAUNCH: problem})
                instance.report_run_failed(run, f"It did not begin: {problem}.")
            yield None
        except Exception:  # noqa: BLE001  # as in Dagster's own loop: the others are looked at
            yield DaemonErrorCapture.process_exception(
                exc_info=sys.exc_info(),
                logger=logger,
                log_message="A run that begins could not be looked at.",
            )


def why_lost(instance: DagsterInstance, record: RunRecord, now: datetime) -> str | None:
    """Return why a run will not begin; None while it may."""
    silent = now - record.update_timestamp
    run = instance.get_run_by_id(record.dagster_run.run_id)
    if run is None or run.status not in _BEGINNING or silent < GONE:
        return None
    if find_run_process(instance, run, LAUNCHED) is not None:
        return None
    if recorded_process(instance, run, LAUNCHED) is not None:
        return "its process ended before it began"
    return "no process was started for it" if silent >= UNLAUNCHED else None
