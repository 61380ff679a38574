"""Dagster's daemons, with sensors that tick, and a queue that launches, when there is something to do.

Dagster's sensor daemon looks every five seconds, and each tick costs the daemon and the code server a
good part of a tenth of a second of processor, whatever the sensor finds. So whether one of ours is due
is asked of the ledger here, by one query a few times a second (`sensor_pace`); and whether a
run is queued of Dagster's storage, before its whole round over all runs.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from dagster import DagsterInstance, DagsterRunStatus, RunsFilter
from dagster._cli.utils import get_instance_for_cli
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._core.remote_representation.code_location import CodeLocation, GrpcServerCodeLocation
from dagster._core.remote_representation.external import RemoteSensor
from dagster._core.scheduler.instigation import InstigatorState
from dagster._core.workspace.context import IWorkspaceProcessContext
from dagster._core.workspace.load_target import WorkspaceFileTarget
from dagster._daemon import sensor as dagster_sensors
from dagster._daemon.controller import create_daemon_of_type, daemon_controller_from_instance
from dagster._daemon.daemon import DaemonIterator, DagsterDaemon, SensorDaemon, SpanMarker
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import (
    QueuedRunCoordinatorDaemon,
)
from dagster._daemon.utils import DaemonErrorCapture
from dagster._utils.interrupts import capture_interrupts, setup_interrupt_handlers

from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.retry.effects.due import open_work
from tracks_dagster.settings import LEDGER_FILE, Settings
from tracks_dagster.track.errors import TracksError
from tracks_dagster.track.names import NO_PREFIX
from tracks_dagster.wings.embedded.edge.run_monitoring import RunMonitoringDaemon
from tracks_dagster.wings.embedded.sensor_pace import UNKNOWN, Work
from tracks_dagster.wiring import home_ledger

POLL_S = 0.25  # from one look at the ledger, or at queued runs, to the next
POLL_IDLE_S = 1.0  # while no run and no eval is open
POLL_SHARE = 0.02  # of the clock that these looks take, where the ledger is large
POLL_S_MAX = 2.0  # but it is asked as often as this
ROUND_S = 5.0  # from one look at all sensors to the next, as Dagster's
SOON_S = 1.0  # where a tick was still under way
ANSWER_S_MAX = 5  # of a code server, to say which process it is
# While its file is as it was at the last look, the ledger is not asked again; but in this time it is.
UNCHANGED_S_MAX = 10.0
SETTLED_S = 2.0  # after a write: within a file system's tick a second one may leave the same times
QUEUE_ROUND_S = 1.0  # from one look at runs that had to wait to the next


def run_daemons(workspace: Path) -> None:
    """Run the daemons that the instance needs until SIGTERM or Ctrl-C."""
    setup_interrupt_handlers()
    with (
        capture_interrupts(),
        get_instance_for_cli() as instance,
        daemon_controller_from_instance(
            instance, WorkspaceFileTarget([str(workspace)]), gen_daemons=_daemons
        ) as controller,
        suppress(KeyboardInterrupt),
    ):
        read_when_changed(controller._workspace_process_context)
        controller.check_daemon_loop()


def read_when_changed(context: IWorkspaceProcessContext[Any]) -> None:
    """Let Dagster's refresh of each minute read only what another code server serves by now.

    With hundreds of projects each reading costs the daemon and the code server seconds of processor,
    and one process serves the same for as long as it lives.
    """
    read = context.refresh_workspace

    def refresh() -> None:
        entries = context.create_request_context().get_code_location_entries().values()
        if not all(_is_served_unchanged(each.code_location) for each in entries):
            read()

    context.refresh_workspace = refresh  # type: ignore[method-assign]


def _is_served_unchanged(location: CodeLocation | None) -> bool:
    """Whether the process that a code location was read from serves it still."""
    if not isinstance(location, GrpcServerCodeLocation):
        return False
    try:
        return location.client.get_server_id(timeout=ANSWER_S_MAX) == location.server_id
    except DagsterUserCodeUnreachableError:
        return False


def _daemons(instance: DagsterInstance) -> Iterator[DagsterDaemon[Any]]:
    sensors = PacedSensorDaemon(instance)
    for kind in instance.get_required_daemon_types():
        if kind == SensorDaemon.daemon_type():
            yield sensors
        elif kind == QueuedRunCoordinatorDaemon.daemon_type():
            yield PromptQueueDaemon(lambda: sensors.poll_s)
        elif kind == RunMonitoringDaemon.daemon_type():
            yield RunMonitoringDaemon(instance.run_monitoring_poll_interval_seconds)
        else:
            yield create_daemon_of_type(kind, instance)


class PacedSensorDaemon(SensorDaemon):
    """Dagster's sensor daemon with another idea of when a sensor is due."""

    def __init__(self, instance: DagsterInstance) -> None:
        super().__init__(settings=instance.get_sensor_settings())
        self._pace = UNKNOWN
        self._asked: OpenWork | None = None
        self._prefix = NO_PREFIX
        self._ask_at = 0.0
        self._own_interval = dagster_sensors.is_under_min_interval
        # Dagster asks it, by this name, before a tick is begun and again in the tick's thread.
        dagster_sensors.is_under_min_interval = self._is_too_soon

    @property
    def poll_s(self) -> float:
        """How long to wait before the next look at what may have come."""
        return POLL_IDLE_S if self._pace.is_idle else POLL_S

    def core_loop(
        self,
        workspace_process_context: IWorkspaceProcessContext[Any],
        shutdown_event: threading.Event,
    ) -> DaemonIterator:
        """Let sensors tick as their pace says: Dagster's own loop, but for when it looks at them."""
        ticks: dict[str, Any] = {}
        round_at = began_at = 0.0
        while True:
            self._look()
            if time.monotonic() >= round_at or self._pace.changed_after(began_at):
                began_at = time.time()
                yield SpanMarker.START_SPAN
                try:
                    yield from dagster_sensors.execute_sensor_iteration(
                        workspace_process_context,
                        self._logger,
                        threadpool_executor=self._threadpool_executor,
                        submit_threadpool_executor=self._submit_threadpool_executor,
                        sensor_tick_futures=ticks,
                    )
                except Exception:  # noqa: BLE001  # as in Dagster's own loop
                    yield DaemonErrorCapture.process_exception(
                        exc_info=sys.exc_info(),
                        logger=self._logger,
                        log_message="The sensors could not be looked at.",
                    )
                yield SpanMarker.END_SPAN
                is_under_way = any(not tick.done() for tick in ticks.values())
                round_s = min(ROUND_S, self._pace.round_s(time.time()))
                round_at = time.monotonic() + (min(SOON_S, round_s) if is_under_way else round_s)
            shutdown_event.wait(self.poll_s)
            yield None

    def _look(self) -> None:
        """Ask the ledger for what is open; without an answer Dagster's own intervals hold."""
        if time.monotonic() < self._ask_at:
            return
        try:
            if self._asked is None:
                settings = Settings.from_environment()
                file = None if settings.postgres_url else settings.home / LEDGER_FILE
                self._asked, self._prefix = OpenWork(home_ledger(settings), file), settings.prefix
            began = time.monotonic()
            if (work := self._asked.changed()) is not None:
                self._pace = self._pace.next(work, time.time())
            took_s = time.monotonic() - began
        except TracksError as error:
            if self._pace is not UNKNOWN:
                self._logger.warning("Sensors tick by their own intervals: %s", error)
            self._pace, took_s = UNKNOWN, POLL_S_MAX
        self._ask_at = time.monotonic() + min(took_s / POLL_SHARE, POLL_S_MAX)

    def _is_too_soon(
        self,
        state: InstigatorState,
        remote_sensor: RemoteSensor,
        minimum_allowed_min_interval: int | None = None,
    ) -> bool:
        """Whether a tick of the sensor has to wait; by the names of Dagster's own function."""
        elapsed_s = dagster_sensors.get_elapsed(state)
        if elapsed_s is None:
            return False
        now_s = time.time()
        name = self._prefix.without(remote_sensor.name) or remote_sensor.name
        is_due = self._pace.is_due(name, ticked_s=now_s - elapsed_s, now_s=now_s)
        if is_due is None:
            return self._own_interval(state, remote_sensor, minimum_allowed_min_interval)
        return not is_due


class PromptQueueDaemon(QueuedRunCoordinatorDaemon):
    """Dagster's daemon of the run queue, which looks through the runs only where one is queued."""

    def __init__(self, poll_s: Callable[[], float]) -> None:
        super().__init__(interval_seconds=QUEUE_ROUND_S)
        self._poll_s = poll_s

    def core_loop(
        self,
        workspace_process_context: IWorkspaceProcessContext[Any],
        shutdown_event: threading.Event,
    ) -> DaemonIterator:
        """Launch what the limits allow soon after it was queued; what has to wait, at each round."""
        queued = RunsFilter(statuses=[DagsterRunStatus.QUEUED])
        instance, waiting, round_at = workspace_process_context.instance, 0, 0.0
        while True:
            try:
                count = instance.get_runs_count(queued)
                if count > waiting or (count and time.monotonic() >= round_at):
                    round_at = time.monotonic() + QUEUE_ROUND_S
                    yield from self.run_iteration(workspace_process_context)
                    count = instance.get_runs_count(queued)
                waiting = count
            except Exception:
                self._logger.exception("The queued runs could not be looked at.")
            shutdown_event.wait(self._poll_s())
            yield None


class OpenWork:
    """The open work of a home, read again only where the ledger's file may have changed.

    To open the ledger takes most of what such a look costs. file: its path; None for Postgres, which is
    asked each time.
    """

    def __init__(
        self, ledger: Ledger, file: Path | None, *, seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self._ledger, self._file, self._seconds = ledger, file, seconds
        self._stamp: Stamp | None = None
        self._ask_at = 0.0

    def changed(self) -> list[Work] | None:
        """Return the open work; None where it is what the last call returned. Raises LedgerError."""
        stamp = None if self._file is None else stamp_of(self._file, time.time())
        if stamp is not None and stamp == self._stamp and self._seconds() < self._ask_at:
            return None
        self._stamp = None
        work = [Work(**row) for row in open_work(self._ledger)]
        self._stamp, self._ask_at = stamp, self._seconds() + UNCHANGED_S_MAX
        return work


Stamp = tuple[tuple[int, int, int] | None, ...]


def stamp_of(file: Path, now_s: float) -> Stamp | None:
    """Return what changes whenever SQLite writes: of the file and its log inode, size and time.

    None where that says nothing: there is no such file, or it was written a moment ago.
    """
    found: list[tuple[int, int, int] | None] = []
    for path in (file, file.with_name(f"{file.name}-wal")):
        try:
            stat = path.stat()
        except OSError:
            found.append(None)
        else:
            if stat.st_mtime > now_s - SETTLED_S:
                return None
            found.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return tuple(found) if found[0] is not None else None
