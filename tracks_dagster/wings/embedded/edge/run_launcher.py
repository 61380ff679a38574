"""Starts each Dagster run as a process of its own, and knows whether that process lives.

`dagster.yaml` names it. Dagster's own launcher has its code server start them, which waits for their
imports, cannot be replaced while one runs, and takes their ends into its grave. Here a run depends on
no other process: it is forked from a warm parent, where there is one, or is a new interpreter.

A run whose process died without a word (a reboot, a `kill -9`) would be listed as started for ever, and
its attempt would wait for a supervisor that never comes: Dagster's monitoring asks here for its health.
A run that is declared dead while it lives does no harm: it finds a newer claim in the track and ends.

A run that a command executes itself is judged by its events.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Self

from dagster import DagsterRun, DagsterRunStatus
from dagster._core.events import EngineEventData
from dagster._core.launcher import LaunchRunContext, RunLauncher
from dagster._core.launcher.base import CheckRunHealthResult
from dagster._grpc.types import ExecuteRunArgs
from dagster._serdes import ConfigurableClass, ConfigurableClassData, serialize_value

from tracks_dagster.defs.resources.application import DagsterOrchestrator
from tracks_dagster.defs.resources.run_processes import (
    find_run_process,
    health_of_process,
    runs_in_own_process,
)
from tracks_dagster.processes import warm
from tracks_dagster.settings import Settings
from tracks_dagster.track.errors import OrchestratorError
from tracks_dagster.track.names import TAG_LAUNCH
from tracks_dagster.track.text.redact import redact
from tracks_dagster.wings.embedded.edge.run_process import IMPORTED

RUN_PROCESS = "tracks_dagster.wings.embedded.edge.run_process"
OUTPUT = 1  # where it prints: into the log of who launches it
LAUNCHED = "Launched a process for the run"  # begins ours of the one that is to be it
TAG_CHARACTERS_MAX = 200


class ProcessRunLauncher(RunLauncher, ConfigurableClass):
    """Implements Dagster's run launcher on this machine."""

    def __init__(self, inst_data: ConfigurableClassData | None = None) -> None:
        self._inst_data = inst_data
        self._children: list[subprocess.Popen[bytes]] = []
        super().__init__()  # type: ignore[no-untyped-call]

    @property
    def inst_data(self) -> ConfigurableClassData | None:
        """Where the instance's config names this class."""
        return self._inst_data

    @classmethod
    def config_type(cls) -> Mapping[str, Any]:
        """No fields."""
        return {}

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]
    ) -> Self:
        """Return the launcher that `dagster.yaml` describes."""
        return cls(inst_data=inst_data)

    def launch_run(self, context: LaunchRunContext) -> None:
        """Start the run's process; raises OrchestratorError, with the reason in the run's tags."""
        run = context.dagster_run
        if DagsterOrchestrator(self._instance).was_cancelled(run.run_id):
            # In its queue, at the moment at which Dagster took it from there (dagster#3323).
            self._instance.report_run_canceled(run, "It was cancelled in the queue.")
            return
        try:
            pid = self._start(run)
        except OSError as error:
            met = redact(f"its process could not be started: {error}")
            self._instance.add_run_tags(run.run_id, {TAG_LAUNCH: met[:TAG_CHARACTERS_MAX]})
            raise OrchestratorError(f"Run {run.run_id}: {met}") from error
        self._instance.report_engine_event(
            f"{LAUNCHED} (pid: {pid}).", run, EngineEventData.in_process(pid)
        )

    def _start(self, run: DagsterRun) -> int:
        """Return the pid of the process that was started; raises OSError."""
        self._children = [child for child in self._children if child.poll() is None]
        if run.job_code_origin is None:
            raise OSError("the run names no code")
        arguments = serialize_value(
            ExecuteRunArgs(
                job_origin=run.job_code_origin,
                run_id=run.run_id,
                instance_ref=self._instance.get_ref(),
            )
        )
        words = ("-m", RUN_PROCESS, arguments)
        settings = Settings.from_environment()
        folder, environment = str(settings.root), dict(os.environ)
        if settings.sockets is not None:
            start = warm.Start(words=words, cwd=folder, environment=environment)
            address = settings.sockets.with_suffix(warm.RUN_WORKERS)
            warm.ensure(address, IMPORTED, environment)
            if (child := warm.ask(address, start, OUTPUT)) is not None:
                child.close()
                return child.pid
        popen = subprocess.Popen(
            [sys.executable, *words],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
        )
        self._children.append(popen)
        return popen.pid

    def terminate(self, run_id: str) -> bool:
        """Ask the run's process to end; one that has yet to begin finds that it is cancelled."""
        run = self._instance.get_run_by_id(run_id)
        if run is None or run.is_finished:
            return False
        if runs_in_own_process(self._instance, run):
            self._instance.report_engine_event(
                "Cannot cancel it from here: the command that began this run executes it. End that.",
                run,
            )
            return False
        self._instance.report_run_canceling(run)
        process = find_run_process(self._instance, run)
        if process is not None:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)
        elif run.status is DagsterRunStatus.STARTING:
            self._instance.report_run_canceled(run, "Its worker, when it comes, begins nothing.")
        return True

    @property
    def supports_check_run_worker_health(self) -> bool:
        """Tell Dagster's run monitoring to ask."""
        return True

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        """Look whether the run's process lives."""
        return health_of_process(self._instance, run)
