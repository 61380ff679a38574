"""Every way in which Dagster ends, repeats, hides or delays a run: what launch and watch make of it.

On Dagster's own storage in SQLite, with runs as the sensor daemon makes them; gangs are played.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from dagster import (
    AssetKey,
    AssetMaterialization,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    SensorResult,
    build_sensor_context,
    job,
    op,
)
from dagster._core.remote_origin import (
    RegisteredCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)
from dagster._daemon.monitoring.run_monitoring import check_run_timeout, monitor_canceling_run

from tests.fakes import FakeGangs
from tests.histories import History
from tests.plain_site import launch_attempts, watch_attempts
from tracks_dagster.attempts.effects.heartbeat import describe_launch, read_launches
from tracks_dagster.attempts.launch import BACKOFF_S_MAX
from tracks_dagster.attempts.ports import GangPhase, GangReport
from tracks_dagster.definitions import defs
from tracks_dagster.defs.resources.application import DagsterOrchestrator
from tracks_dagster.defs.sensors import shown_attempts
from tracks_dagster.track import names
from tracks_dagster.track.bodies import StopRequested
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.states.run_state import AttemptState
from tracks_dagster.wiring import App

KEY = "r-1/a01"
LOGGER = logging.getLogger("monitoring")
FAILURE, CANCELED = DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED


@op
def _nothing() -> None: ...


@job
def own_report() -> None:
    """A job of somebody else's, with our partition key."""
    _nothing()


class Home:
    """A home with one open attempt, on Dagster's storage, whose sensors tick when the test says so."""

    def __init__(self, app: App, instance: DagsterInstance) -> None:
        self.gangs = FakeGangs()
        self.app = replace(app, launcher_of=lambda _: self.gangs)
        self.instance = instance
        self._passed_s = 0.0

    def write(self, history: History) -> History:
        history.write_to(self.app.store)
        self.app.tracks.project(history.name)
        return history

    def wait(self, seconds: float = BACKOFF_S_MAX) -> None:
        self._passed_s += seconds

    def _now(self) -> App:
        now, passed = self.app.now, timedelta(seconds=self._passed_s)
        return replace_clock(self.app, lambda: now() + passed)

    def tick(self, sensor: Callable[..., object]) -> object:
        resources = {"app": self._now(), "orchestrator": DagsterOrchestrator(self.instance)}
        with build_sensor_context(
            instance=self.instance, resources=resources, definitions=defs
        ) as context:
            return sensor(context)

    def asked(self) -> list[str]:
        """Tick launch_attempts; return the run keys that it asks Dagster for."""
        result = self.tick(launch_attempts)
        if not isinstance(result, SensorResult):
            return []
        return [str(request.run_key) for request in result.run_requests or ()]

    def watch(self) -> None:
        self.tick(watch_attempts)

    def run(self, run_key: str, status: DagsterRunStatus | None = None) -> DagsterRun:
        """Make the run of a request, as Dagster's sensor daemon does, and let it end."""
        tags = {names.TAG_RUN_KEY: run_key, names.TAG_PARTITION: KEY, names.TAG_ATTEMPT: KEY}
        made = self.instance.create_run_for_job(
            defs.resolve_job_def(names.TRAIN_ATTEMPT_JOB), tags=tags
        )
        if status is FAILURE:
            self.instance.report_run_failed(made)
        return made

    def cancel(self, run: DagsterRun) -> None:
        """Cancel a run that is queued, as Dagster's run coordinator does."""
        self.instance.report_run_canceling(run, message="Canceling run from the queue.")
        self.instance.report_run_canceled(run)

    @property
    def attempt(self) -> AttemptState:
        return self.app.tracks.run("r-1").attempts[-1]

    @property
    def stops(self) -> list[StopRequested]:
        return [stop.body for stop in self.app.tracks.run("r-1").stops]


def replace_clock(app: App, now: Callable[[], object]) -> App:
    app.tracks.now = now  # type: ignore[assignment]
    return replace(app, now=now)  # type: ignore[arg-type]


@pytest.fixture
def home(app: App, instance: DagsterInstance) -> Home:
    made = Home(app, instance)
    made.write(History("r-1").declare().open())
    return made


@pytest.mark.parametrize("deleted", [(0,), (1,), (0, 1), (0, 2), (0, 1, 2)])
def test_whatever_old_runs_are_deleted_the_next_launch_has_a_key_that_no_run_has(
    home: Home, deleted: tuple[int, ...]
) -> None:
    runs = []
    for _ in range(3):
        (run_key,) = home.asked()
        runs.append(home.run(run_key, FAILURE))
        home.wait()
    for index in deleted:
        home.instance.delete_run(runs[index].run_id)
    (run_key,) = home.asked()
    left = {run.tags[names.TAG_RUN_KEY] for run in home.instance.get_runs()}
    assert run_key not in left
    assert home.asked() == [run_key]  # a repeated tick asks for the same run


def test_a_run_that_is_executed_again_and_keeps_the_key_takes_no_later_key_away(home: Home) -> None:
    (first,) = home.asked()
    home.run(first, FAILURE)
    home.run(first, FAILURE)  # "Re-execute" copies all tags
    home.wait()
    assert home.asked() == [f"{KEY}/1"]


def test_a_launch_that_dagster_does_not_take_is_reported_since_when(home: Home) -> None:
    home.asked()
    home.wait(240)
    home.asked()
    (pending,) = read_launches(home.app.store, names.LAUNCH_ATTEMPTS)
    words = describe_launch(pending, home.app.tracks.now())
    assert words == (
        "its launch was asked for 4 min ago and has not begun: Dagster has made no run of it yet"
    )


def test_a_launch_that_a_limit_keeps_in_dagsters_queue_is_asked_for_once_and_waited_for(
    home: Home,
) -> None:
    """As `max_concurrent_runs: 1` does, or a limit on our tags, in a Dagster that a user has."""
    (run_key,) = home.asked()
    home.instance.create_run_for_job(
        defs.resolve_job_def(names.TRAIN_ATTEMPT_JOB),
        tags={names.TAG_RUN_KEY: run_key, names.TAG_PARTITION: KEY, names.TAG_ATTEMPT: KEY},
        status=DagsterRunStatus.QUEUED,
        remote_job_origin=RemoteJobOrigin(
            RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("here"), "ours"),
            names.TRAIN_ATTEMPT_JOB,
        ),
    )
    home.wait(7200)
    assert home.asked() == []
    (pending,) = read_launches(home.app.store, names.LAUNCH_ATTEMPTS)
    words = describe_launch(pending, home.app.tracks.now() + timedelta(hours=2)) or ""
    assert words.endswith(" ago and has not begun: it waits in Dagster's queue")


@pytest.mark.parametrize("status", [DagsterRunStatus.STARTED, FAILURE])
def test_a_foreign_run_with_the_same_partition_key_is_neither_a_supervisor_nor_a_failed_launch(
    home: Home, status: DagsterRunStatus
) -> None:
    tags = {names.TAG_PARTITION: KEY}
    run = home.instance.create_run_for_job(own_report, tags=tags, status=DagsterRunStatus.STARTED)
    if status is FAILURE:
        home.instance.report_run_failed(run)
    assert home.asked() == [f"{KEY}/0"]
    (pending,) = read_launches(home.app.store, names.LAUNCH_ATTEMPTS)
    assert pending.failed_count == 0


def test_a_run_of_the_attempts_asset_that_a_person_began_is_its_supervisor(home: Home) -> None:
    made = home.instance.create_run_for_job(
        defs.resolve_implicit_global_asset_job_def(),
        asset_selection=frozenset({AssetKey(names.ATTEMPT_PARTITIONS)}),
        tags={names.TAG_PARTITION: KEY},
        status=DagsterRunStatus.STARTED,
    )
    assert home.asked() == []
    home.instance.report_run_failed(made)
    home.wait()
    assert home.asked() == [f"{KEY}/0"]


def test_a_run_that_claimed_counts_whatever_its_job_is_called(home: Home) -> None:
    run = home.instance.create_run_for_job(own_report, status=DagsterRunStatus.STARTED)
    home.write(History("r-2").declare().open().supervise(run.run_id))
    assert home.asked() == [f"{KEY}/0"]


def test_a_cancel_in_the_queue_ends_the_attempt_as_a_person_asked_and_nothing_starts_again(
    home: Home,
) -> None:
    (run_key,) = home.asked()
    run = home.run(run_key)
    home.cancel(run)
    for _ in range(3):
        home.wait()
        assert home.asked() == []
    (stop,) = home.stops
    assert (stop.by, stop.mode) == ("dagster ui", "drain")
    assert stop.why == f"its Dagster run {run.run_id} was cancelled"
    home.watch()
    assert home.attempt.reason is TerminationReason.USER_CANCELLED
    assert home.gangs.specs == []


def test_a_forced_cancel_of_a_run_that_has_not_begun_is_a_stop_too(home: Home) -> None:
    (run_key,) = home.asked()
    run = home.run(run_key)
    home.instance.report_run_canceled(run, "This run has been marked as canceled from outside.")
    home.asked()
    assert [stop.by for stop in home.stops] == ["dagster ui"]


def test_a_cancel_whose_worker_comes_up_late_is_a_stop_at_once(home: Home) -> None:
    """It is CANCELING until Dagster's time-out: the worker finds that it was cancelled, and ends."""
    (run_key,) = home.asked()
    home.instance.report_run_canceling(home.run(run_key))
    assert home.asked() == []
    assert [stop.by for stop in home.stops] == ["dagster ui"]


def test_a_cancelled_run_that_then_fails_is_still_a_persons_stop(home: Home) -> None:
    """As a worker leaves it that meets a locked database while it drains."""
    (run_key,) = home.asked()
    run = home.run(run_key)
    home.cancel(run)
    home.instance.report_run_failed(run)
    home.asked()
    assert [stop.by for stop in home.stops] == ["dagster ui"]


def test_a_duplicate_that_is_cancelled_stops_nothing_while_another_run_is_at_the_attempt(
    home: Home,
) -> None:
    (run_key,) = home.asked()
    home.run(run_key)
    home.cancel(home.run(run_key))
    assert home.asked() == []
    assert home.stops == []


def test_a_run_that_dagsters_time_limit_ends_is_not_a_persons_stop_and_is_followed_by_another(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run_key,) = home.asked()
    run = home.run(run_key)
    home.instance.add_run_tags(run.run_id, {"dagster/max_runtime": "1"})
    record = home.instance.get_run_record_by_id(run.run_id)
    assert record is not None
    monkeypatch.setattr(type(home.instance.run_launcher), "terminate", lambda *_, **__: True)
    check_run_timeout(home.instance, record._replace(start_time=1.0), LOGGER, 0.0)
    home.instance.report_run_canceled(run)  # the worker took its signal for a cancel
    home.wait()
    assert home.asked() == [f"{KEY}/1"]
    assert home.stops == []


@pytest.mark.parametrize("is_by_dagster", [False, True])
def test_a_cancel_that_times_out_has_the_will_of_who_asked_first(
    home: Home, is_by_dagster: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run_key,) = home.asked()
    run = home.run(run_key)
    words = "Canceling due to exceeding maximum runtime of 5 seconds." if is_by_dagster else None
    home.instance.report_run_canceling(run, words)
    monkeypatch.setattr(type(home.instance), "run_monitoring_cancel_timeout_seconds", 0)
    record = home.instance.get_run_record_by_id(run.run_id)
    assert record is not None
    monitor_canceling_run(home.instance, record, LOGGER)
    home.wait()
    assert bool(home.asked()) is is_by_dagster
    assert bool(home.stops) is not is_by_dagster


def test_a_run_that_is_deleted_is_followed_by_another_and_stops_nothing(home: Home) -> None:
    (run_key,) = home.asked()
    run = home.run(run_key)
    assert home.asked() == []  # it waits in a queue, for however long
    home.instance.delete_run(run.run_id)
    assert len(home.asked()) == 1
    assert home.stops == []


def test_a_stop_whose_supervisor_is_gone_is_carried_out_by_the_watcher(home: Home) -> None:
    """As a forced cancel leaves it: the run is CANCELED, and the gang trains on."""
    (run_key,) = home.asked()
    run = home.run(run_key)
    history = History("r-2").declare().open().supervise(run.run_id).place().restore()
    home.write(history.stop("drain"))
    home.gangs.reports["r-2", 1] = GangReport(phase=GangPhase.ALIVE, where="node-1")
    home.watch()
    assert ("drain", "r-2", 1) not in home.gangs.calls  # its supervisor lives
    home.cancel(run)
    home.watch()
    assert ("drain", "r-2", 1) in home.gangs.calls


@pytest.mark.parametrize(
    "cursor", ["", "no JSON", "[]", "7", "null", '{"look": 3}', '{"look": {}}']
)
def test_a_cursor_that_a_person_sets_or_resets_loses_and_doubles_nothing(
    home: Home, cursor: str
) -> None:
    (run_key,) = home.asked()
    home.run(run_key)
    resources = {"app": home.app, "orchestrator": DagsterOrchestrator(home.instance)}
    for sensor in (launch_attempts, watch_attempts):
        with build_sensor_context(
            instance=home.instance, cursor=cursor, resources=resources, definitions=defs
        ) as context:
            result = sensor(context)
        assert not isinstance(result, SensorResult) or not result.run_requests


def test_attempts_that_end_together_are_shown_a_part_in_each_tick(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dagster ends a tick after 60 s, and forgets what it was about to show."""
    monkeypatch.setattr(shown_attempts, "CLOSED_MAX", 2)
    lost = {f"lost-{number}" for number in range(5)}
    for run_id in sorted(lost):
        home.write(History(run_id).declare().open().supervise("deleted").place())
        home.gangs.reports[run_id, 1] = GangReport(phase=GangPhase.GONE)
    shown = list[set[str]]()
    for _ in range(4):
        result = home.tick(watch_attempts)
        assert isinstance(result, SensorResult)
        assert not any(home.app.tracks.run(run_id).attempts[0].is_open for run_id in lost)
        receipts = (each for each in result.asset_events if isinstance(each, AssetMaterialization))
        shown.append({str(each.partition).partition("/")[0] for each in receipts} & lost)
    assert [len(each) for each in shown] == [2, 2, 1, 0]
    assert set[str]().union(*shown) == lost


def test_two_daemons_that_tick_at_once_ask_for_one_run(home: Home) -> None:
    assert home.asked() == home.asked() == [f"{KEY}/0"]
