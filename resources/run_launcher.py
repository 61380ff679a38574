"""Dagster's own run launcher, which also notices that a run's worker is gone.

`dagster.yaml` names it. Without it a run whose worker died together with the code server (a reboot, a
`kill -9`) is listed as started for ever, and its attempt would wait for a supervisor that never comes.
A run that is declared dead while it lives does no harm: it finds a newer claim in the track and goes.
"""

import time

from dagster import DagsterRun, DefaultRunLauncher
from dagster._core.errors import (
    DagsterUserCodeUnreachableError,
    DagsterUserCodeUnreachableTimeoutError,
)
from dagster._core.launcher.base import CheckRunHealthResult, WorkerStatus
from dagster._grpc.client import DagsterGrpcClient
from dagster._grpc.types import GetCurrentRunsResult
from dagster._serdes import deserialize_value

from resources.own_process import health_in_own_process, runs_in_own_process

TRIES = 3  # a code server that is busy may refuse a connection; one that is gone refuses every one
TRY_AGAIN_S = 1.0


class CheckedRunLauncher(DefaultRunLauncher):
    """Starts each run as a process of the code server, and asks that server whether it lives."""

    @property
    def supports_check_run_worker_health(self) -> bool:
        """Tell Dagster's run monitoring to ask."""
        return True

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        """Ask the code server that started the run; one that does not exist any more says no."""
        client = self._get_grpc_client_for_termination(run.run_id)  # type: ignore[no-untyped-call]
        if client is None:
            return self._without_server(run)
        try:
            answer = _current_runs(client)
        except DagsterUserCodeUnreachableTimeoutError:
            return CheckRunHealthResult(WorkerStatus.RUNNING, "Its code server is busy.")
        except DagsterUserCodeUnreachableError:
            return CheckRunHealthResult(WorkerStatus.NOT_FOUND, "Its code server is gone.")
        if run.run_id in answer.current_runs:
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        return CheckRunHealthResult(WorkerStatus.NOT_FOUND, "Its process is gone.")

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
