"""Runs that no launcher started: a command executes one itself, as `dagster asset materialize` does.

Every launcher asks here first: it has no worker of such a run, and only its events show whether it
continues.
"""

from datetime import UTC, datetime

from dagster import DagsterEventType, DagsterInstance, DagsterRun
from dagster._core.launcher.base import CheckRunHealthResult, WorkerStatus

SILENT_S_MAX = 3600.0  # without an event; twice what `tracks run` gives the making of snapshots


def runs_in_own_process(instance: DagsterInstance, run: DagsterRun) -> bool:
    """Whether no launcher was asked for this run: whoever asks one leaves an event first.

    A command executes such a run itself, as `dagster asset materialize` does. A launcher that is asked
    for its health finds no worker of its own, and Dagster's monitoring would write a failure into a run
    that lives. Only its events show whether it continues.
    """
    launched = instance.get_records_for_run(
        run.run_id, of_type=DagsterEventType.PIPELINE_STARTING, limit=1
    )
    return not launched.records


def health_in_own_process(instance: DagsterInstance, run: DagsterRun) -> CheckRunHealthResult:
    """Count it as running until it has ended, or has written no event for SILENT_S_MAX."""
    now = instance.get_run_by_id(run.run_id)
    if now is None or now.is_finished:
        return CheckRunHealthResult(WorkerStatus.SUCCESS, "The run has ended.")
    newest = instance.get_records_for_run(run.run_id, limit=1, ascending=False).records
    silent_s = datetime.now(UTC).timestamp() - newest[0].timestamp if newest else 0.0
    if silent_s > SILENT_S_MAX:
        words = (
            f"The command that executes it has written nothing for {silent_s:.0f} s; it is gone."
        )
        return CheckRunHealthResult(WorkerStatus.NOT_FOUND, words)
    return CheckRunHealthResult(WorkerStatus.RUNNING, "The command that began it executes it.")
