"""Dagster's own run launcher, which also records what a launch met, and notices that a worker is gone.

`dagster.yaml` names it. Without it a run whose worker died together with the code server (a reboot, a
`kill -9`) is listed as started for ever, and its attempt would wait for a supervisor that never comes.
A run that is declared dead while it lives does no harm: it finds a newer claim in the track and ends.

A code server that does not answer in time has not refused: on a machine that is overloaded the run's
process is on its way, and to call the run failed would start another one beside it. Such a run stays as
it is, until Dagster's monitoring gives up waiting (`start_timeout_seconds`).

A run that a command executes itself is judged by its events.
"""

import time
from datetime import UTC, datetime

from dagster import DagsterError, DagsterEventType, DagsterInstance, DagsterRun, DefaultRunLauncher
from dagster._core.errors import (
    DagsterUserCodeUnreachableError,
    DagsterUserCodeUnreachableTimeoutError,
)
from dagster._core.launcher import LaunchRunContext
from dagster._core.launcher.base import CheckRunHealthResult, WorkerStatus
from dagster._grpc.client import DagsterGrpcClient
from dagster._grpc.types import GetCurrentRunsResult
from dagster._grpc.utils import default_grpc_timeout
from dagster._serdes import deserialize_value

from tracks_dagster.attempts.effects.local.processes import find_process
from tracks_dagster.track.names import TAG_LAUNCH
from tracks_dagster.track.text.redact import redact

TRIES = 3  # a code server that is busy may refuse a connection; one that is gone refuses every one
TRY_AGAIN_S = 1.0
STARTED = "Started process for run"  # begins Dagster's event of a run's own process
EVENTS_MAX = 100  # of Dagster's own, the newest first, among which that one is looked for
CLOCK_S = 60.0  # a process that is younger than its event by more got the pid later
TAG_CHARACTERS_MAX = 200
SILENT_S_MAX = 3600.0  # without an event; twice what `tracks run` gives the making of snapshots


class CheckedRunLauncher(DefaultRunLauncher):
    """Starts each run as a process of the code server, and asks that server whether it lives."""

    @property
    def supports_check_run_worker_health(self) -> bool:
        """Tell Dagster's run monitoring to ask."""
        return True

    def launch_run(self, context: LaunchRunContext) -> None:
        """Start the run; what that met is in its tags. Raises DagsterError when it was refused."""
        try:
            super().launch_run(context)
        except DagsterUserCodeUnreachableTimeoutError:
            late = f"the code server did not answer in {default_grpc_timeout()} s"
            self._tag(context.dagster_run, f"{late}; {self._log()}")
        except DagsterUserCodeUnreachableError:
            self._tag(context.dagster_run, f"the code server could not be reached; {self._log()}")
            raise
        except DagsterError as error:
            self._tag(context.dagster_run, redact(str(error)))
            raise

    def _log(self) -> str:
        return f"see daemon.log in {self._instance.root_directory}"

    def _tag(self, run: DagsterRun, met: str) -> None:
        self._instance.add_run_tags(run.run_id, {TAG_LAUNCH: met[:TAG_CHARACTERS_MAX]})

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        """Ask the code server that started the run; one that does not exist any more is a no."""
        client = self._get_grpc_client_for_termination(run.run_id)  # type: ignore[no-untyped-call]
        if client is None:
            return self._without_server(run)
        try:
            answer = _current_runs(client)
        except DagsterUserCodeUnreachableTimeoutError:
            return CheckRunHealthResult(WorkerStatus.RUNNING, "Its code server is busy.")
        except DagsterUserCodeUnreachableError:
            return CheckRunHealthResult(WorkerStatus.NOT_FOUND, "Its code server is gone.")
        if run.run_id in answer.current_runs and not self._is_process_gone(run):
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        return CheckRunHealthResult(WorkerStatus.NOT_FOUND, "Its process is gone.")

    def _is_process_gone(self, run: DagsterRun) -> bool:
        """Whether the run recorded its process and that one does not live.

        A code server whose storage is away when a process ends loses the thread that notices such
        ends, and names the run among its current ones for ever.
        """
        if not self.has_instance:
            return False
        events = self._instance.get_records_for_run(
            run.run_id, of_type=DagsterEventType.ENGINE_EVENT, limit=EVENTS_MAX, ascending=False
        )
        for record in events.records:
            event = record.event_log_entry.dagster_event
            if event is None or not event.message or STARTED not in event.message:
                continue
            pid = event.engine_event_data.metadata.get("pid")
            process = find_process(int(str(pid.value))) if pid is not None else None
            return process is None or process.began_at.timestamp() - CLOCK_S > record.timestamp
        return False

    def _without_server(self, run: DagsterRun) -> CheckRunHealthResult:
        """Judge a run that no code server was asked for, or that has ended meanwhile."""
        if self.has_instance and runs_in_own_process(self._instance, run):
            return health_in_own_process(self._instance, run)
        return CheckRunHealthResult(WorkerStatus.NOT_FOUND, "The run has ended.")


def _current_runs(client: DagsterGrpcClient) -> GetCurrentRunsResult:
    """Return the runs whose processes the code server knows; raises what the last of TRIES raised."""
    for left in reversed(range(TRIES)):
        try:
            return deserialize_value(client.get_current_runs(), GetCurrentRunsResult)
        except DagsterUserCodeUnreachableTimeoutError:
            raise
        except DagsterUserCodeUnreachableError:
            if not left:
                raise
            time.sleep(TRY_AGAIN_S)
    raise AssertionError("every try returns or raises")


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
