"""The attempts asset and its sensors, executed by Dagster in this process on played gangs."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AddDynamicPartitionsRequest,
    AssetCheckEvaluation,
    AssetCheckKey,
    AssetCheckSeverity,
    AssetExecutionContext,
    AssetKey,
    AssetMaterialization,
    DagsterExecutionInterruptedError,
    DagsterInstance,
    Definitions,
    DeleteDynamicPartitionsRequest,
    ExecuteInProcessResult,
    SensorResult,
    SkipReason,
    build_sensor_context,
    instance_for_test,
    materialize,
)
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest

from tests.evidences import leave_word
from tests.fakes import FakeGangs, FakeOrchestrator
from tests.histories import History
from tests.plain_site import (
    launch_attempts,
    receipts,
    retry_infrastructure,
    retry_numerics,
    retry_oom,
    retry_preempted,
    training_attempts,
    watch_attempts,
)
from tracks_dagster.attempts.effects.heartbeat import read_heartbeat
from tracks_dagster.attempts.effects.supervise import Supervisor
from tracks_dagster.attempts.launch import BACKOFF_S
from tracks_dagster.attempts.ports import GangPhase, GangReport
from tracks_dagster.definitions import defs
from tracks_dagster.defs.assets import attempts as attempts_asset
from tracks_dagster.defs.resources.application import DagsterOrchestrator
from tracks_dagster.home.deployment import is_limited
from tracks_dagster.reasons.evidence import Condition, RankEnd
from tracks_dagster.track import names
from tracks_dagster.track.bodies import ComputeRequest, Drill
from tracks_dagster.track.errors import GangUnreachable, SettingsError
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.wiring import App

KEY = "r-1/a01"
PREEMPTED = Condition(
    type="DisruptionTarget",
    reason="PreemptionByScheduler",
    message="taken",
    at=None,
    source="kubernetes",
)


@pytest.fixture
def gangs() -> FakeGangs:
    return FakeGangs()


@pytest.fixture
def app(app: App, gangs: FakeGangs) -> App:
    """The application with gangs that the test plays."""
    return replace(app, launcher_of=lambda _: gangs)


@pytest.fixture
def dagster_runs() -> FakeOrchestrator:
    return FakeOrchestrator()


def write(app: App, history: History) -> History:
    history.write_to(app.store)
    app.tracks.project(history.name)
    return history


def gone(gangs: FakeGangs, *, exit_code: int, conditions: tuple[Condition, ...] = ()) -> None:
    ranks = tuple(RankEnd(rank=rank, exit_code=exit_code) for rank in range(2))
    gangs.reports["r-1", 1] = GangReport(
        phase=GangPhase.GONE, ranks=ranks, conditions=conditions, where="node-1"
    )


def supervise(
    app: App, instance: DagsterInstance, runs: FakeOrchestrator | None = None
) -> ExecuteInProcessResult:
    instance.add_dynamic_partitions(names.ATTEMPT_PARTITIONS, [KEY])
    return materialize(
        [training_attempts],
        instance=instance,
        resources={"app": app, "orchestrator": runs or FakeOrchestrator()},
        partition_key=KEY,
        raise_on_error=False,
    )


def words_of(result: ExecuteInProcessResult) -> str:
    """Return why the supervisor's step failed, as Dagster's UI shows it."""
    failure = result.failure_data_for_node(names.ATTEMPT_PARTITIONS)
    assert failure is not None
    assert failure.user_failure_data is not None
    return failure.user_failure_data.description or ""


def receipts_of(instance: DagsterInstance) -> list[AssetMaterialization]:
    """What Dagster shows of attempts that ended, the newest first."""
    records = instance.fetch_materializations(AssetKey(names.RECEIPTS), limit=5).records
    return [each.asset_materialization for each in records if each.asset_materialization]


def receipt_check(instance: DagsterInstance) -> tuple[bool, AssetCheckSeverity]:
    """Whether the newest check of a receipt passed, and how bad it is if not."""
    key = AssetCheckKey(AssetKey(names.RECEIPTS), names.ENDED_AS_MEANT)
    (record, *_) = instance.event_log_storage.get_asset_check_execution_history(key, limit=1)
    assert record.event is not None
    evaluation = record.event.get_dagster_event().event_specific_data
    assert isinstance(evaluation, AssetCheckEvaluation)
    return evaluation.passed, evaluation.severity


def is_out_of_date(instance: DagsterInstance) -> bool:
    """Whether Dagster shows the receipt as "unsynced"."""
    resolver = CachingStaleStatusResolver(
        instance=instance,
        asset_graph=defs.resolve_asset_graph(),
        loading_context=LoadingContextForTest(instance),
    )
    key = AssetKey(names.RECEIPTS)
    return resolver.get_status(key, KEY) is not StaleStatus.FRESH


IMMEDIATE = "dagster._core.run_coordinator"
QUEUED = {"run_coordinator": {"module": "dagster", "class": "QueuedRunCoordinator"}}
LIMITED = {"run_coordinator": {**QUEUED["run_coordinator"], "config": {"max_concurrent_runs": 2}}}
OURS = {
    "module": "tracks_dagster.defs.resources.run_coordinator",
    "class": "TracksRunCoordinator",
    "config": {"max_concurrent_runs": 500},
}


@contextmanager
def watching(
    app: App, instance: DagsterInstance, dagster_runs: FakeOrchestrator
) -> Iterator[Callable[[], SensorResult]]:
    """Give the watcher's ticks, by one process."""
    resources = {"app": app, "orchestrator": dagster_runs}
    with build_sensor_context(
        instance=instance, resources=resources, definitions=Definitions(sensors=[watch_attempts])
    ) as context:

        def tick() -> SensorResult:
            found = watch_attempts(context)
            assert isinstance(found, SensorResult)
            for each in found.dynamic_partitions_requests or ():
                if isinstance(each, AddDynamicPartitionsRequest):
                    instance.add_dynamic_partitions(each.partitions_def_name, each.partition_keys)
            return found

        yield tick


def test_in_a_deployment_that_limits_its_runs_a_run_ends_once_training_has_begun(
    app: App, gangs: FakeGangs, dagster_runs: FakeOrchestrator
) -> None:
    history = write(app, History("r-1").declare().open().supervise("dead").place().restore())
    gangs.reports["r-1", 1] = GangReport(phase=GangPhase.ALIVE, ranks=(RankEnd(rank=0),))
    with instance_for_test(overrides=LIMITED) as instance:
        result = supervise(app, instance)
        assert result.success
        assert result.get_asset_materialization_events() == []
        assert result.get_asset_check_evaluations() == []
        [seen] = instance.fetch_observations(AssetKey(names.ATTEMPT_PARTITIONS), limit=5).records
        observed = seen.asset_observation
        assert observed is not None
        assert observed.partition == KEY
        assert "the sensor watch_attempts watches the attempt" in (observed.description or "")
        claim = app.tracks.run("r-1").attempts[0].claims[-1].body
        assert claim.lets_go
        # From here on the sensor shows what a supervisor would have shown.
        dagster_runs.put(KEY, claim.dagster_run_id, is_finished=True)
        commit = history.commit(10).drafts[-1]
        app.tracks.decide_run("r-1", lambda _: commit)
        with watching(app, instance, dagster_runs) as tick:
            assert [each.partition for each in tick().asset_events] == ["r-1/a01/step-10"]
            assert tick().asset_events == []
            gone(gangs, exit_code=1, conditions=(PREEMPTED,))
            receipt, *_ = tick().asset_events
            assert receipt.asset_key == AssetKey(names.RECEIPTS)
    assert app.tracks.run("r-1").attempts[0].reason is TerminationReason.PREEMPTED


@pytest.fixture
def on_slurm(app: App, tmp_path: Path) -> App:
    """The application of a home whose gangs may be jobs of Slurm."""
    settings = tmp_path / "slurm.yaml"
    settings.write_text("python: /venv/bin/python\n")
    return replace(app, settings=replace(app.settings, files={"TRACKS_SLURM": settings}))


def test_a_drill_that_kills_the_watching_process_has_one_on_slurm_too(
    on_slurm: App, gangs: FakeGangs, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts_asset, "is_limited", lambda instance: False)
    drills = (Drill(kind="kill_run_worker", step=30),)
    slurm = ComputeRequest(launcher="slurm")
    history = History("r-1").declare(drills=drills).open(compute=slurm)
    write(on_slurm, history.supervise("dead").place().restore())
    gone(gangs, exit_code=1)
    supervise(on_slurm, instance)
    attempt = on_slurm.tracks.run("r-1").attempts[0]
    assert not attempt.claims[-1].body.lets_go
    assert not attempt.is_open


def test_one_process_watches_all_gangs_on_slurm(
    on_slurm: App, gangs: FakeGangs, instance: DagsterInstance
) -> None:
    app = on_slurm
    history = History("r-1").declare().open(compute=ComputeRequest(launcher="slurm"))
    write(app, history.supervise("dead").place().restore())
    gangs.reports["r-1", 1] = GangReport(phase=GangPhase.ALIVE, ranks=(RankEnd(rank=0),))
    supervise(app, instance)
    attempt = app.tracks.run("r-1").attempts[0]
    assert attempt.claims[-1].body.lets_go
    assert attempt.is_open
    [seen] = instance.fetch_observations(AssetKey(names.ATTEMPT_PARTITIONS), limit=5).records
    observed = seen.asset_observation
    assert observed is not None
    assert "One process watches all gangs on slurm" in (observed.description or "")


@pytest.mark.parametrize(
    ("overrides", "limited"),
    [
        ({}, True),  # Dagster's default is a queue of ten
        ({"run_coordinator": {"module": IMMEDIATE, "class": "DefaultRunCoordinator"}}, False),
        (LIMITED, True),
        ({"concurrency": {"runs": {"max_concurrent_runs": -1}}, **QUEUED}, False),
        ({"concurrency": {"runs": {"max_concurrent_runs": 3}}, **QUEUED}, True),
        ({"run_coordinator": OURS}, False),
    ],
)
def test_a_run_supervises_to_the_end_where_dagster_has_room_for_it(
    overrides: dict[str, Any], limited: bool
) -> None:
    with instance_for_test(overrides=overrides) as instance:
        assert is_limited(instance) is limited


def test_a_failed_attempt_shows_its_receipt_and_names_its_reason(
    app: App, instance: DagsterInstance, gangs: FakeGangs
) -> None:
    write(app, History("r-1").declare().open().supervise("dead").place().restore().commit(10))
    gone(gangs, exit_code=1, conditions=(PREEMPTED,))
    result = supervise(app, instance)
    assert not result.success
    assert "preempted: The machine was taken" in words_of(result)
    (receipt,) = receipts_of(instance)
    assert receipt.partition == KEY
    assert receipt.metadata["ended/termination_reason"].value == "preempted"
    assert receipt.metadata["steps/last_committed_step"].value == 10
    assert receipt_check(instance) == (False, AssetCheckSeverity.WARN)  # an interruption
    assert not is_out_of_date(instance)
    (run,) = instance.get_runs()
    assert run.tags[names.TAG_REASON] == "preempted"


def test_a_supervisor_whose_pod_is_preempted_fails_in_words_that_say_so(
    app: App, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a cluster: the launcher's watch tags the run, and the worker gets SIGTERM."""
    write(app, History("r-1").declare().open())

    def taken_away(*_: object) -> None:
        (run,) = instance.get_runs()
        instance.add_run_tags(run.run_id, {names.TAG_WORKER_REASON: "preempted"})
        raise DagsterExecutionInterruptedError

    monkeypatch.setattr(Supervisor, "supervise", taken_away)
    monkeypatch.setattr(type(instance.run_launcher), "records_why_workers_end", True, raising=False)
    words = words_of(supervise(app, instance))
    assert words.startswith("The supervisor's own pod was taken away (preempted): ")
    assert words.endswith("its gang trains, and the next Dagster run adopts it.")


def test_commits_reach_dagster_as_partitions_and_events_once(
    app: App, instance: DagsterInstance, gangs: FakeGangs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def all_of_all_runs(*_: object) -> None:
        raise AssertionError("Dagster was asked for the checkpoints of all runs there ever were")

    history = History("r-1").declare().open().supervise("dead").place().restore()
    write(app, history.commit(10).commit(20))
    instance.add_dynamic_partitions(names.CHECKPOINT_PARTITIONS, [f"{KEY}/step-10"])
    gone(gangs, exit_code=1)
    with monkeypatch.context() as patch:
        patch.setattr(instance, "get_dynamic_partitions", all_of_all_runs)
        supervise(app, instance)
    checkpoints = AssetKey(names.CHECKPOINT_PARTITIONS)
    (record,) = instance.fetch_materializations(checkpoints, limit=5).records
    made = record.asset_materialization
    assert made is not None
    assert made.partition == f"{KEY}/step-20"
    commits = history.state.checkpoints
    assert (made.tags or {})[names.TAG_DATA_VERSION] == commits[-1].ref.manifest_sha256
    registered = instance.get_dynamic_partitions(names.CHECKPOINT_PARTITIONS)
    assert sorted(registered) == [f"{KEY}/step-10", f"{KEY}/step-20"]


def test_a_completed_attempt_is_materialized_with_its_final_checkpoint_as_version(
    app: App, instance: DagsterInstance, gangs: FakeGangs
) -> None:
    history = write(
        app, History("r-1").declare().open().supervise("dead").place().restore().commit(40)
    )
    leave_word(app.store, f"{history.launch_id}/exit/rank-0.json", "completed")
    gone(gangs, exit_code=0)
    result = supervise(app, instance)
    assert result.success
    (made,) = [
        m
        for m in result.asset_materializations_for_node(names.ATTEMPT_PARTITIONS)
        if m.asset_key == AssetKey(names.ATTEMPT_PARTITIONS)
    ]
    assert made.metadata["ended/termination_reason"].value == "completed"
    assert [each.metadata for each in receipts_of(instance)] == [made.metadata]
    assert receipt_check(instance)[0]
    assert not is_out_of_date(instance)
    final = history.state.checkpoints[-1].ref.manifest_sha256
    assert (made.tags or {})[names.TAG_DATA_VERSION] == final


def test_materializing_an_attempt_that_has_ended_is_refused_with_what_to_do(
    app: App, instance: DagsterInstance
) -> None:
    write(app, History("r-1").declare().open().supervise().place().end("preempted"))
    assert "tracks retry r-1" in words_of(supervise(app, instance))


def test_materializing_an_attempt_with_all_its_steps_shows_it_again_and_never_as_failed(
    app: App, instance: DagsterInstance, gangs: FakeGangs
) -> None:
    """As a backfill over all partitions does, and "Re-execute" of its supervisor."""
    history = History("r-1").declare().open().supervise().place().restore().commit(40)
    write(app, history.end("completed"))
    result = supervise(app, instance)
    assert result.success
    made = [
        each
        for each in result.asset_materializations_for_node(names.ATTEMPT_PARTITIONS)
        if each.asset_key == AssetKey(names.ATTEMPT_PARTITIONS)
    ]
    assert [each.metadata["ended/termination_reason"].value for each in made] == ["completed"]
    assert gangs.calls == []
    assert len(app.tracks.run("r-1").attempts[0].claims) == 1


def test_a_supervisor_that_another_one_replaces_says_which_and_that_training_goes_on(
    app: App, instance: DagsterInstance, gangs: FakeGangs
) -> None:
    history = write(app, History("r-1").declare().open().supervise("dead").place().restore())
    claim = history.supervise("5ad0e3f2-1b9c").drafts[-1]

    def observe(ref: AttemptRef) -> GangReport:
        """Meanwhile a person materializes the attempt."""
        app.tracks.decide_run(ref.run_id, lambda _: claim)
        return GangReport(phase=GangPhase.ALIVE, where="node-1")

    gangs.observe = observe  # type: ignore[method-assign]
    words = words_of(supervise(app, instance))
    assert words == (
        "Nothing is wrong with the attempt: Dagster run 5ad0e3f2 supervises it now, so this one ends. "
        "The training goes on."
    )
    assert app.tracks.run("r-1").attempts[0].is_open


def test_a_duplicate_that_was_cancelled_ends_no_attempt_at_which_another_run_is(
    app: App, instance: DagsterInstance, gangs: FakeGangs, dagster_runs: FakeOrchestrator
) -> None:
    """As of a backfill that is cancelled: its run may begin nevertheless."""
    write(app, History("r-1").declare().open().supervise("first").place().restore())
    gangs.reports["r-1", 1] = GangReport(phase=GangPhase.ALIVE, where="node-1")
    dagster_runs.put(KEY, "first")
    dagster_runs.was_cancelled = lambda dagster_run_id: True  # type: ignore[method-assign]
    words = words_of(supervise(app, instance, dagster_runs))
    assert words.startswith("This Dagster run was cancelled while another one is at the attempt")
    state = app.tracks.run("r-1")
    assert (state.attempts[0].is_open, list(state.stops), gangs.calls) == (True, [], [])
    assert len(state.attempts[0].claims) == 1


def tick(sensor: object, app: App, instance: DagsterInstance, runs: FakeOrchestrator) -> object:
    resources = {"app": app, "orchestrator": runs}
    with build_sensor_context(instance=instance, resources=resources, definitions=defs) as context:
        return sensor(context)  # type: ignore[operator]


def test_the_launcher_registers_the_partition_and_requests_one_run(
    app: App, instance: DagsterInstance, dagster_runs: FakeOrchestrator
) -> None:
    write(app, History("r-1").declare().open())
    first = tick(launch_attempts, app, instance, dagster_runs)
    assert isinstance(first, SensorResult)
    (request,) = first.run_requests or ()
    assert (request.run_key, request.partition_key) == (f"{KEY}/0", KEY)
    assert (request.tags[names.TAG_ATTEMPT], request.tags[names.TAG_LEASE]) == (KEY, "0")
    assert request.tags[names.TAG_PRIORITY] == "500"  # of the default class
    (registration,) = first.dynamic_partitions_requests or ()
    assert registration.partition_keys == [KEY]
    again = tick(launch_attempts, app, instance, dagster_runs)
    assert isinstance(again, SensorResult)
    assert [r.run_key for r in again.run_requests or ()] == [f"{KEY}/0"]
    dagster_runs.put(KEY, "dagster-1")
    assert isinstance(tick(launch_attempts, app, instance, dagster_runs), SkipReason)


def test_the_watcher_reports_the_receipt_and_the_commits_of_an_attempt_that_it_closed(
    app: App, instance: DagsterInstance, gangs: FakeGangs, dagster_runs: FakeOrchestrator
) -> None:
    write(app, History("r-1").declare().open().supervise("dead").place().restore().commit(10))
    gone(gangs, exit_code=1, conditions=(PREEMPTED,))
    dagster_runs.put(KEY, "dead", is_finished=True)
    result = tick(watch_attempts, app, instance, dagster_runs)
    assert isinstance(result, SensorResult)
    commit, receipt, *checks = result.asset_events
    assert (commit.partition, receipt.partition) == (f"{KEY}/step-10", KEY)
    assert isinstance(receipt, AssetMaterialization)
    assert receipt.asset_key == AssetKey(names.RECEIPTS)
    assert receipt.metadata["ended/termination_reason"].value == "preempted"
    assert [check.asset_key for check in checks] == [
        AssetKey(names.RECEIPTS),
        AssetKey(names.ATTEMPT_PARTITIONS),
    ]
    for check in checks:
        assert isinstance(check, AssetCheckEvaluation)
        assert (check.partition, check.passed) == (KEY, False)
        assert check.severity is AssetCheckSeverity.WARN  # nothing is wrong with the run
    again = tick(watch_attempts, app, instance, dagster_runs)
    assert isinstance(again, SensorResult)
    assert not again.asset_events


def test_the_watcher_shows_a_receipt_that_is_missing_once_and_none_that_is_there_or_too_fresh(
    app: App, instance: DagsterInstance, dagster_runs: FakeOrchestrator
) -> None:
    """As of a home of before, or of a Dagster run that died right after the end."""
    write(app, History("r-1").declare().open().supervise().place().end("preempted").open())
    write(app, History("r-2", begin=app.now()).declare().open().place().end("preempted"))
    keys = [KEY, "r-1/a02", "r-2/a01"]
    instance.add_dynamic_partitions(names.ATTEMPT_PARTITIONS, keys)
    result = tick(watch_attempts, app, instance, dagster_runs)
    assert isinstance(result, SensorResult)
    receipt, check = result.asset_events
    assert (receipt.partition, check.partition) == (KEY, KEY)
    for event in result.asset_events:
        instance.report_runless_asset_event(event)
    assert receipt_check(instance) == (False, AssetCheckSeverity.WARN)
    now = app.now
    later = replace(app, now=lambda: now() + timedelta(hours=2))
    result = tick(watch_attempts, later, instance, dagster_runs)
    assert isinstance(result, SensorResult)
    assert [event.partition for event in result.asset_events] == ["r-2/a01", "r-2/a01"]


def test_what_dagsters_storage_did_not_take_at_the_end_is_shown_by_the_watcher_later(
    app: App, instance: DagsterInstance, dagster_runs: FakeOrchestrator
) -> None:
    """A checkpoint whose partition is there and whose event is not, and the attempt's own event."""
    history = History("r-1").declare().open().supervise().place().restore().commit(20).commit(40)
    write(app, history.end("completed"))
    write(
        app, History("r-2").declare().open().supervise().place().restore().commit(10).end("unknown")
    )
    instance.add_dynamic_partitions(names.ATTEMPT_PARTITIONS, [KEY, "r-2/a01"])
    instance.add_dynamic_partitions(names.CHECKPOINT_PARTITIONS, [f"{KEY}/step-20"])
    key = AssetKey(names.CHECKPOINT_PARTITIONS)
    instance.report_runless_asset_event(AssetMaterialization(key, partition=f"{KEY}/step-40"))
    result = tick(watch_attempts, app, instance, dagster_runs)
    assert isinstance(result, SensorResult)
    made = [each for each in result.asset_events if isinstance(each, AssetMaterialization)]
    assert sorted((each.asset_key.to_user_string(), str(each.partition)) for each in made) == [
        (names.CHECKPOINT_PARTITIONS, f"{KEY}/step-20"),
        (names.CHECKPOINT_PARTITIONS, "r-2/a01/step-10"),
        (names.RECEIPTS, KEY),
        (names.RECEIPTS, "r-2/a01"),
        (names.ATTEMPT_PARTITIONS, KEY),
    ]
    requests = result.dynamic_partitions_requests or ()
    registered = [
        k
        for each in requests
        if isinstance(each, AddDynamicPartitionsRequest)
        for k in each.partition_keys
    ]
    assert sorted(registered) == [f"{KEY}/step-20", "r-2/a01/step-10"]
    for event in result.asset_events:
        instance.report_runless_asset_event(event)
    again = tick(watch_attempts, app, instance, dagster_runs)
    assert isinstance(again, SensorResult)
    assert not again.asset_events


@pytest.mark.parametrize(
    "method",
    [
        "add_dynamic_partitions",
        "has_dynamic_partition",
        "log_event",
        "add_run_tags",
        "get_records_for_run",
    ],
)
def test_a_database_of_dagsters_that_is_locked_ends_no_supervisor(
    app: App,
    instance: DagsterInstance,
    gangs: FakeGangs,
    method: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history = History("r-1").declare().open().supervise("dead").place().restore().commit(40)
    write(app, history)
    leave_word(app.store, f"{history.launch_id}/exit/rank-0.json", "completed")
    gone(gangs, exit_code=0)
    instance.add_dynamic_partitions(names.ATTEMPT_PARTITIONS, [KEY])

    owner: object = AssetExecutionContext if method == "log_event" else instance
    asked = getattr(instance, method, None)

    def locked(*given: Any, **named: Any) -> Any:
        if asked is not None and named.get("partitions_def_name") == names.ATTEMPT_PARTITIONS:
            return asked(*given, **named)
        raise sqlite3.OperationalError("database is locked")

    with monkeypatch.context() as patch:
        patch.setattr(owner, method, locked)
        result = materialize(
            [training_attempts],
            instance=instance,
            resources={"app": app, "orchestrator": DagsterOrchestrator(instance)},
            partition_key=KEY,
            raise_on_error=False,
        )
    assert result.success
    assert app.tracks.run("r-1").attempts[0].reason is TerminationReason.COMPLETED


def test_a_run_that_was_cancelled_in_the_queue_and_starts_nevertheless_trains_nothing(
    app: App, instance: DagsterInstance, gangs: FakeGangs
) -> None:
    """Dagster's own race (dagster#3323)."""
    write(app, History("r-1").declare().open())
    runs = FakeOrchestrator()
    runs.was_cancelled = lambda dagster_run_id: True  # type: ignore[method-assign]
    assert not supervise(app, instance, runs).success
    state = app.tracks.run("r-1")
    assert state.attempts[0].reason is TerminationReason.USER_CANCELLED
    assert [stop.body.by for stop in state.stops] == ["dagster ui"]
    assert gangs.specs == []


def test_a_run_that_is_executed_again_has_no_verdict_of_its_parent(
    app: App, instance: DagsterInstance
) -> None:
    write(app, History("r-1").declare().open().supervise().place().end("preempted"))
    instance.add_dynamic_partitions(names.ATTEMPT_PARTITIONS, [KEY])
    result = materialize(
        [training_attempts],
        instance=instance,
        resources={"app": app, "orchestrator": FakeOrchestrator()},
        partition_key=KEY,
        tags={names.TAG_ENDING: "failure", names.TAG_REASON: "code_error", names.TAG_LEASE: "9"},
        raise_on_error=False,
    )
    run = instance.get_run_by_id(result.run_id)
    assert run is not None
    assert (run.tags[names.TAG_ENDING], run.tags[names.TAG_REASON]) == ("", "")


def test_a_receipt_that_is_materialized_by_hand_is_read_again(
    app: App, instance: DagsterInstance
) -> None:
    history = write(app, History("r-1").declare().open().supervise().place())
    instance.add_dynamic_partitions(names.ATTEMPT_PARTITIONS, [KEY])

    def read() -> ExecuteInProcessResult:
        return materialize(
            [receipts],
            instance=instance,
            resources={"app": app},
            partition_key=KEY,
            raise_on_error=False,
        )

    failure = read().failure_data_for_node(names.RECEIPTS)
    assert failure is not None
    assert failure.user_failure_data is not None
    assert "r-1/a01 has not ended" in (failure.user_failure_data.description or "")
    write(app, history.end("unknown"))
    assert read().success
    write(app, history.reclassify(1, "host_oom"))
    assert read().success
    shown = [each.metadata["ended/termination_reason"].value for each in receipts_of(instance)]
    assert shown == ["host_oom", "unknown"]
    assert receipt_check(instance) == (False, AssetCheckSeverity.ERROR)


def test_the_watcher_leaves_a_heartbeat_with_the_switches(
    app: App, instance: DagsterInstance, dagster_runs: FakeOrchestrator
) -> None:
    tick(watch_attempts, app, instance, dagster_runs)
    heartbeat = read_heartbeat(app.store)
    assert heartbeat is not None
    assert set(heartbeat.sensors) == {
        names.LAUNCH_ATTEMPTS,
        names.RETRY_INFRASTRUCTURE,
        names.RETRY_NUMERICS,
        names.RETRY_OOM,
        names.RETRY_PREEMPTED,
        names.RUN_EVALS,
        names.SEND_NOTIFICATIONS,
        names.SHOW_DATASETS,
        names.SHOW_STUDIES,
        names.TUNE_STUDIES,
        names.WATCH_ATTEMPTS,
        names.WATCH_HEALTH,
    }


@pytest.mark.parametrize(
    ("sensor", "reason"),
    [
        (retry_preempted, "preempted"),
        (retry_oom, "gpu_oom"),
        (retry_numerics, "loss_divergence"),
        (retry_infrastructure, "walltime_timeout"),
    ],
)
def test_a_retry_sensor_opens_the_next_attempt_once_and_requests_nothing(
    app: App,
    instance: DagsterInstance,
    dagster_runs: FakeOrchestrator,
    sensor: object,
    reason: str,
) -> None:
    history = History("r-1").declare().open().supervise().place().restore().commit(10)
    write(app, history.end(reason, last_step=12))
    first = tick(sensor, app, instance, dagster_runs)
    assert isinstance(first, SkipReason)
    assert "r-1: opened" in (first.skip_message or "")
    tick(sensor, app, instance, dagster_runs)
    assert [attempt.reason for attempt in app.tracks.run("r-1").attempts] == [
        TerminationReason(reason),
        None,
    ]


def test_a_broken_policy_file_fails_the_ticks_that_decide_retries_and_no_other(
    app: App, instance: DagsterInstance, dagster_runs: FakeOrchestrator, tmp_path: Path
) -> None:
    policy_file = tmp_path / "policy.yaml"
    policy_file.write_text("reasons: {preempted: {cuont: 3}}\n")
    app = replace(app, settings=replace(app.settings, policy_file=policy_file))
    failed = History("r-1").declare().open().supervise().place().restore().commit(10)
    write(app, failed.end("preempted", last_step=12))
    unknown = History("r-2").declare().open().place().restore().commit(10)
    write(app, unknown.end("unknown", last_step=12))
    write(app, History("r-3").declare().stop())
    write(app, History("r-4").declare())
    done = History("r-5").declare(evals=(), promotion=None).open().place().restore().commit(10)
    write(app, done.end("completed", last_step=10))
    with pytest.raises(SettingsError, match="'cuont' is not a key"):
        tick(retry_preempted, app, instance, dagster_runs)
    result = tick(watch_attempts, app, instance, dagster_runs)
    assert isinstance(result, SensorResult)
    assert result.skip_reason is not None
    assert "'cuont' is not a key" in (result.skip_reason.skip_message or "")
    assert app.tracks.run("r-3").finished is not None
    assert len(app.tracks.run("r-4").attempts) == 1
    assert app.tracks.run("r-5").finished is not None
    assert [len(app.tracks.run(run_id).attempts) for run_id in ("r-1", "r-2")] == [1, 1]
    assert isinstance(tick(launch_attempts, app, instance, dagster_runs), SensorResult)
    policy_file.write_text("")
    tick(watch_attempts, app, instance, dagster_runs)
    tick(retry_preempted, app, instance, dagster_runs)
    assert [len(app.tracks.run(run_id).attempts) for run_id in ("r-1", "r-2")] == [2, 2]


def test_a_sensor_that_waits_says_for_what_run_by_run(
    app: App, instance: DagsterInstance, dagster_runs: FakeOrchestrator
) -> None:
    history = History("r-1", begin=app.now()).declare().open().place().restore().commit(10)
    write(app, history.end("node_failure", last_step=12))
    waits = tick(retry_infrastructure, app, instance, dagster_runs)
    assert isinstance(waits, SkipReason)
    assert "r-1: Attempt 1 ended as node_failure" in (waits.skip_message or "")
    assert "after its backoff" in (waits.skip_message or "")
    idle = tick(retry_numerics, app, instance, dagster_runs)
    assert isinstance(idle, SkipReason)
    assert idle.skip_message == "no run with wrong numbers or bad data waits for a decision"


def test_a_retry_is_requested_as_a_run_of_the_group_of_the_first(
    app: App, instance: DagsterInstance, dagster_runs: FakeOrchestrator
) -> None:
    history = History("r-1").declare().open()
    for number in (1, 2):
        history.supervise(f"dagster-{number}").end("preempted").open()
        dagster_runs.put(f"r-1/a{number:02d}", f"dagster-{number}", is_finished=True)
    write(app, history)
    requested = tick(launch_attempts, app, instance, dagster_runs)
    assert isinstance(requested, SensorResult)
    (request,) = requested.run_requests or ()
    assert request.partition_key == "r-1/a03"
    assert request.tags["dagster/parent_run_id"] == "dagster-2"
    assert request.tags["dagster/root_run_id"] == "dagster-1"


def test_a_run_that_was_deleted_from_dagster_is_nobodys_parent(
    app: App, instance: DagsterInstance, dagster_runs: FakeOrchestrator
) -> None:
    history = History("r-1").declare().open().supervise("deleted").end("preempted").open()
    write(app, history)
    requested = tick(launch_attempts, app, instance, dagster_runs)
    assert isinstance(requested, SensorResult)
    (request,) = requested.run_requests or ()
    assert "dagster/root_run_id" not in request.tags


def test_dagster_groups_the_attempts_of_a_run_under_the_first_and_reexecutes_nothing(
    app: App, instance: DagsterInstance
) -> None:
    history = write(app, History("r-1").declare().open().end("preempted"))
    first = supervise(app, instance).dagster_run
    write(app, history.open().supervise(first.run_id))
    now = app.now
    later = replace(app, now=lambda: now() + timedelta(seconds=BACKOFF_S))
    requested = tick(launch_attempts, later, instance, DagsterOrchestrator(instance))
    assert isinstance(requested, SensorResult)
    (request,) = requested.run_requests or ()
    write(app, history.end("preempted"))
    instance.add_dynamic_partitions(names.ATTEMPT_PARTITIONS, ["r-1/a02"])
    second = materialize(
        [training_attempts],
        instance=instance,
        resources={"app": app, "orchestrator": FakeOrchestrator()},
        partition_key="r-1/a02",
        tags=request.tags,
        raise_on_error=False,
    ).dagster_run
    root, group = instance.get_run_group(first.run_id)
    assert root == first.run_id
    assert sorted(run.run_id for run in group) == sorted([first.run_id, second.run_id])
    run = instance.get_run_by_id(second.run_id)
    assert run is not None
    assert run.parent_run_id is None  # a parent in the run itself would make it a re-execution


@pytest.mark.parametrize("sensor", [launch_attempts, watch_attempts])
def test_a_tick_that_could_not_look_at_a_gang_does_not_call_itself_idle(
    sensor: object,
    app: App,
    instance: DagsterInstance,
    gangs: FakeGangs,
    dagster_runs: FakeOrchestrator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write(app, History("r-1").declare().open().supervise("dead"))

    def away(*_: object) -> GangReport:
        raise GangUnreachable("Cannot look at gangs: the API server did not answer within 3 s.")

    monkeypatch.setattr(gangs, "glance", away)
    result = tick(sensor, app, instance, dagster_runs)
    answer = result.skip_message if isinstance(result, SkipReason) else None
    if isinstance(result, SensorResult) and result.skip_reason is not None:
        answer = result.skip_reason.skip_message
    words = "could not look: r-1: Cannot look at gangs: the API server did not answer within 3 s."
    assert answer == words


def test_partitions_of_a_run_that_finished_long_ago_leave_the_ui_and_no_others(
    app: App, instance: DagsterInstance, dagster_runs: FakeOrchestrator
) -> None:
    done = History("done").declare().open().supervise("dead").place().restore().commit(40)
    write(app, done.end("completed").finish())
    write(app, History("r-1").declare().open())
    for name, keys in {
        names.ATTEMPT_PARTITIONS: ["done/a01", "r-1/a01"],
        names.CHECKPOINT_PARTITIONS: ["done/a01/step-40"],
        names.EVAL_PARTITIONS: ["done/heldout-loss@40"],
    }.items():
        instance.add_dynamic_partitions(name, keys)
    finished_at = app.tracks.records("runs/done")[-1].at
    soon = replace(app, now=lambda: finished_at + timedelta(days=89))
    late = replace(app, now=lambda: finished_at + timedelta(days=91))

    def dropped(app: App) -> dict[str, list[str]]:
        result = tick(watch_attempts, app, instance, dagster_runs)
        assert isinstance(result, SensorResult)
        return {
            each.partitions_def_name: list(each.partition_keys)
            for each in result.dynamic_partitions_requests or ()
            if isinstance(each, DeleteDynamicPartitionsRequest)
        }

    assert dropped(soon) == {}
    assert dropped(late) == {
        names.ATTEMPT_PARTITIONS: ["done/a01"],
        names.CHECKPOINT_PARTITIONS: ["done/a01/step-40"],
        names.EVAL_PARTITIONS: ["done/heldout-loss@40"],
    }
