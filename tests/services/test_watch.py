"""A tick of the sensors: what is lost is closed, what is due decided, and trouble stays where it is."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from tests.bodies import BEGIN
from tests.fakes import FakeClock, FakeGangs, FakeObjectStore, FakeOrchestrator, Fault
from tests.histories import History
from tracks_dagster.core import names
from tracks_dagster.core.default_policy import DEFAULT_POLICY
from tracks_dagster.core.evidence import Condition, RankEnd
from tracks_dagster.core.ports import GangPhase, GangReport, Ledger
from tracks_dagster.core.reasons import TerminationReason
from tracks_dagster.core.records import format_time
from tracks_dagster.core.redact import redact
from tracks_dagster.core.track import log_key
from tracks_dagster.services.projector import Projector
from tracks_dagster.services.status import read_heartbeat
from tracks_dagster.services.tracks import Tracks
from tracks_dagster.services.watch import (
    close_lost,
    open_run_ids,
    scan_if_due,
    scan_is_due,
    settle_open_runs,
    survey,
    write_heartbeat,
)


@pytest.fixture
def gangs() -> FakeGangs:
    return FakeGangs()


@pytest.fixture
def orchestrator() -> FakeOrchestrator:
    return FakeOrchestrator()


def lost_run(run_id: str, store: FakeObjectStore, gangs: FakeGangs) -> History:
    history = History(run_id).declare().open().supervise("dead").place()
    history.write_to(store)
    gangs.reports[run_id, 1] = GangReport(
        phase=GangPhase.GONE, ranks=(RankEnd(rank=0, exit_code=1), RankEnd(rank=1, exit_code=1))
    )
    return history


def test_an_attempt_is_closed_when_its_gang_is_gone_and_its_supervisor_is_dead(
    tracks: Tracks,
    ledger: Ledger,
    store: FakeObjectStore,
    gangs: FakeGangs,
    orchestrator: FakeOrchestrator,
) -> None:
    lost_run("r-1", store, gangs)
    Projector(store, ledger).scan()
    orchestrator.put("r-1/a01", "dead", is_finished=True)
    tick = close_lost(tracks, ledger, gangs, orchestrator, clean=redact)
    assert [(run_id, attempt.attempt_id) for run_id, attempt in tick.closed] == [("r-1", 1)]
    ended = tracks.run("r-1").attempts[0].ended
    assert ended is not None
    assert ended.closed_by == names.WATCH_ATTEMPTS
    assert not close_lost(tracks, ledger, gangs, orchestrator, clean=redact).closed


def test_an_attempt_that_somebody_supervises_is_left_alone(
    tracks: Tracks,
    ledger: Ledger,
    store: FakeObjectStore,
    gangs: FakeGangs,
    orchestrator: FakeOrchestrator,
) -> None:
    lost_run("r-1", store, gangs)
    Projector(store, ledger).scan()
    orchestrator.put("r-1/a01", "dead")
    assert not close_lost(tracks, ledger, gangs, orchestrator, clean=redact).closed
    assert gangs.calls == []


def test_a_run_that_cannot_be_read_does_not_keep_the_others_waiting(
    tracks: Tracks,
    ledger: Ledger,
    store: FakeObjectStore,
    gangs: FakeGangs,
    orchestrator: FakeOrchestrator,
) -> None:
    for run_id in ("r-1", "r-2"):
        lost_run(run_id, store, gangs)
    Projector(store, ledger).scan()
    store.put(log_key("runs/r-1", 4), b"no record")
    tick = close_lost(tracks, ledger, gangs, orchestrator, clean=redact)
    assert [run_id for run_id, _ in tick.closed] == ["r-2"]
    assert any(problem.startswith("r-1: Record 4 cannot be read") for problem in tick.problems)


def test_looking_brings_what_the_ranks_appended_into_the_ledger(
    tracks: Tracks,
    ledger: Ledger,
    store: FakeObjectStore,
    gangs: FakeGangs,
    orchestrator: FakeOrchestrator,
) -> None:
    history = History("r-1").declare().open().supervise()
    history.write_to(store)
    Projector(store, ledger).scan()
    history.place().restore().commit(10).write_to(store)
    survey(tracks, ledger, gangs, orchestrator)
    assert [row["step"] for row in ledger.query("select step from checkpoints")] == [10]


def test_every_sensor_decides_its_own_reasons_and_each_reason_has_one(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    for run_id, reason in (("r-1", "preempted"), ("r-2", "gpu_oom"), ("r-3", "native_crash")):
        history = History(run_id).declare().open().supervise().place().restore().commit(10)
        history.end(reason, last_step=12).write_to(store)
    Projector(store, ledger).scan()

    def opened_by(sensor: str) -> list[str]:
        tick = settle_open_runs(tracks, ledger, sensor=sensor, policy=DEFAULT_POLICY)
        assert not tick.problems
        return [line.split(":")[0] for line in tick.decided]

    assert opened_by(names.RETRY_PREEMPTED) == ["r-1"]
    assert opened_by(names.RETRY_PREEMPTED) == []
    assert opened_by(names.RETRY_OOM) == ["r-2"]
    assert opened_by(names.RUN_EVALS) == []


def test_finished_and_refused_runs_are_not_looked_at(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    History("open").declare().open().write_to(store)
    refused = History("refused").declare().open().supervise().place().end("code_error")
    refused.refuse().write_to(store)
    Projector(store, ledger).scan()
    assert open_run_ids(ledger) == ["open"]


def test_the_heartbeat_says_when_and_which_sensors_are_on(
    store: FakeObjectStore, clock: FakeClock
) -> None:
    write_heartbeat(store, clock(), {names.RETRY_OOM: False, names.WATCH_ATTEMPTS: True})
    heartbeat = read_heartbeat(store)
    assert heartbeat is not None
    assert heartbeat.at == clock()
    assert heartbeat.sensors == {names.RETRY_OOM: False, names.WATCH_ATTEMPTS: True}


def test_the_whole_store_is_scanned_once_a_day() -> None:
    assert scan_is_due(None, BEGIN)
    assert not scan_is_due(format_time(BEGIN), BEGIN + timedelta(hours=23))
    assert scan_is_due(format_time(BEGIN), BEGIN + timedelta(hours=24))


def test_a_broken_track_is_told_once_a_day_and_fails_no_tick(
    ledger: Ledger, store: FakeObjectStore
) -> None:
    History("good").declare().open().write_to(store)
    store.put(log_key("runs/bad", 0), b"no record")
    scanned_at, problems = scan_if_due(Projector(store, ledger), None, BEGIN)
    assert scanned_at == format_time(BEGIN)
    assert "runs/bad" in problems[0]
    assert open_run_ids(ledger) == ["good"]
    assert scan_if_due(Projector(store, ledger), scanned_at, BEGIN) == (scanned_at, ())


def test_a_scan_that_cannot_reach_the_store_is_made_again_at_the_next_tick(
    ledger: Ledger, store: FakeObjectStore
) -> None:
    History("good").declare().open().write_to(store)
    store.fail("get", 1, Fault.FAILS)
    scanned_at, problems = scan_if_due(Projector(store, ledger), None, BEGIN)
    assert (scanned_at, len(problems)) == (None, 1)


def test_a_run_whose_declaring_process_was_killed_gets_its_first_attempt(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    History("r-1").declare().write_to(store)
    Projector(store, ledger).scan()
    settle_open_runs(tracks, ledger, sensor=names.RETRY_OOM, policy=DEFAULT_POLICY)
    assert tracks.run("r-1").attempts == ()
    for _ in range(2):
        settle_open_runs(tracks, ledger, sensor=names.WATCH_ATTEMPTS, policy=DEFAULT_POLICY)
        [attempt] = tracks.run("r-1").attempts
        assert attempt.opened.decided_by == names.WATCH_ATTEMPTS


def test_a_preemption_while_nobody_supervised_is_closed_and_then_decided(
    tracks: Tracks,
    ledger: Ledger,
    store: FakeObjectStore,
    gangs: FakeGangs,
    orchestrator: FakeOrchestrator,
) -> None:
    lost_run("r-1", store, gangs)
    Projector(store, ledger).scan()
    taken = Condition(
        type="DisruptionTarget",
        reason="PreemptionByScheduler",
        message="",
        at=None,
        source="kubernetes",
    )
    report = gangs.reports["r-1", 1]
    gangs.reports["r-1", 1] = GangReport(
        phase=report.phase, ranks=report.ranks, conditions=(taken,)
    )
    close_lost(tracks, ledger, gangs, orchestrator, clean=redact)
    settle_open_runs(tracks, ledger, sensor=names.RETRY_PREEMPTED, policy=DEFAULT_POLICY)
    first, second = tracks.run("r-1").attempts
    assert first.reason is TerminationReason.PREEMPTED
    assert second.opened.decided_by == names.RETRY_PREEMPTED
    evidence = json.loads(store.objects[first.ended.evidence_key]) if first.ended else {}
    assert evidence["dagster"]["dagster_run_id"] == "dead"
