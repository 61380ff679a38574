"""Whether a run's process lives, by what Dagster's record says of it: what every launcher asks here.

The watcher asks too where Dagster's own launcher starts runs.

A run that no launcher started, which a command executes itself as `dagster asset materialize` does, is
judged by its events.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

from dagster import DagsterEventType, DagsterInstance, DagsterRun, DagsterRunStatus, RunsFilter
from dagster._core.launcher.base import CheckRunHealthResult, WorkerStatus
from dagster._core.launcher.default_run_launcher import DefaultRunLauncher

from tracks_dagster.processes.process import Process, find_process

STARTED = "Started process for run"  # begins Dagster's event of a run's own process
EVENTS_MAX = 100  # of Dagster's own, the newest first, among which that one is looked for
CLOCK_S = 60.0  # a process that is younger than its event by more got the pid later
SILENT_S_MAX = 3600.0  # without an event; twice what `tracks run` gives the making of snapshots

UNLAUNCHED = timedelta(minutes=10)  # of a run whose process was never seen
GONE = timedelta(
    seconds=30
)  # of one whose process is gone: it may have written its end a moment ago
LOOKED_AT_MAX = 100  # runs of a job
_UNDER_WAY = [DagsterRunStatus.STARTING, DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING]


def end_lost_runs(instance: DagsterInstance, jobs: Iterable[str], now: datetime) -> Iterator[str]:
    """End as failed each run of these jobs whose process is gone; yield which, in words.

    Dagster's own launcher forgets a run with the code server that started it: it would be listed as
    started for ever, hold one of Dagster's slots, and count as what supervises. What another launcher
    started is its own to judge.
    """
    if type(instance.run_launcher) is not DefaultRunLauncher:
        return
    for job in jobs:
        under_way = RunsFilter(job_name=job, statuses=_UNDER_WAY)
        for record in instance.get_run_records(under_way, limit=LOOKED_AT_MAX):
            run, silent = record.dagster_run, now - record.update_timestamp
            if silent < GONE or find_run_process(instance, run) is not None:
                continue
            if silent < UNLAUNCHED and recorded_process(instance, run, STARTED) is None:
                continue
            newest = instance.get_run_by_id(run.run_id)
            if newest is None or newest.is_finished or runs_in_own_process(instance, run):
                continue
            instance.report_run_failed(newest, "Its process is gone; nothing runs it any more.")
            yield f"Dagster run {run.run_id} of {job} is ended: its process is gone"


def health_of_process(instance: DagsterInstance, run: DagsterRun) -> CheckRunHealthResult:
    """Look whether the process of a run of this machine lives."""
    if runs_in_own_process(instance, run):
        return health_in_own_process(instance, run)
    if find_run_process(instance, run) is not None:
        return CheckRunHealthResult(WorkerStatus.RUNNING)
    return CheckRunHealthResult(WorkerStatus.NOT_FOUND, "Its process is gone.")


def find_run_process(
    instance: DagsterInstance, run: DagsterRun, words: str = STARTED
) -> Process | None:
    """Return the living process that the run recorded as its own; None where none lives.

    words: what begins the event of it: of another one, the process that is to be the run's.
    """
    found = recorded_process(instance, run, words)
    if found is None:
        return None
    process = find_process(found[0])
    is_another = process is not None and process.began_at.timestamp() - CLOCK_S > found[1]
    return None if is_another else process


def recorded_process(
    instance: DagsterInstance, run: DagsterRun, words: str
) -> tuple[int, float] | None:
    """Return the pid that the newest such event names, and the event's time in seconds; else None."""
    events = instance.get_records_for_run(
        run.run_id, of_type=DagsterEventType.ENGINE_EVENT, limit=EVENTS_MAX, ascending=False
    )
    for record in events.records:
        event = record.event_log_entry.dagster_event
        if event is not None and event.message and words in event.message:
            pid = event.engine_event_data.metadata.get("pid")
            return None if pid is None else (int(str(pid.value)), record.timestamp)
    return None


def runs_in_own_process(instance: DagsterInstance, run: DagsterRun) -> bool:
    """Whether no launcher was asked for this run: anyone who asks one leaves an event first.

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
