"""A tick of the sensors: what is lost is closed, what is due decided, and trouble stays where it is."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import NoReturn

import pytest

from tests.bodies import BEGIN
from tests.deciders import ticked, world_of
from tests.fakes import FakeClock, FakeGangs, FakeObjectStore, FakeOrchestrator, Fault
from tests.histories import History
from tracks_dagster.attempts.effects import watch
from tracks_dagster.attempts.effects.closing import LINGER_S
from tracks_dagster.attempts.effects.evidence import read_evidence
from tracks_dagster.attempts.effects.gang_watch import DRAIN_KILL_S, LINGERED, LeftGangs
from tracks_dagster.attempts.effects.heartbeat import read_heartbeat, write_heartbeat
from tracks_dagster.attempts.effects.watch import close_lost, leaving, survey
from tracks_dagster.attempts.launch import plan_launches
from tracks_dagster.attempts.ports import DRAIN_GRACE_S, GangPhase, GangReport
from tracks_dagster.holds.effects.stops import request_stop
from tracks_dagster.ledger.effects.projector import SCAN_EVERY, Projector
from tracks_dagster.ledger.effects.ticks import Tick, TickPart, TimeSlice, run_parts, skip_reason
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.reasons.evidence import Condition, RankEnd
from tracks_dagster.reasons.hangs import Beat, Phase
from tracks_dagster.retry.effects.due import (
    revisit,
    runs_between_attempts,
    runs_with_open_attempts,
)
from tracks_dagster.track import names
from tracks_dagster.track.errors import GangError
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import format_time
from tracks_dagster.track.track import log_key


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
    world = world_of(tracks, ledger, launcher_of=lambda _: gangs, orchestrator=orchestrator)
    tick = close_lost(world)
    assert [(run_id, attempt.attempt_id) for run_id, attempt in tick.done] == [("r-1", 1)]
    ended = tracks.run("r-1").attempts[0].ended
    assert ended is not None
    assert ended.closed_by == names.WATCH_ATTEMPTS
    assert not close_lost(world).done


@pytest.fixture
def left_run(store: FakeObjectStore, ledger: Ledger, orchestrator: FakeOrchestrator) -> History:
    """A run whose Dagster run started the gang, let go and succeeded."""
    history = History("r-1").declare().open().supervise("starter", lets_go=True).place().restore()
    history.write_to(store)
    Projector(store, ledger).scan()
    orchestrator.put("r-1/a01", "starter", is_finished=True)
    return history


def training(*beats: Beat) -> GangReport:
    ranks = tuple(RankEnd(rank=beat.rank) for beat in beats)
    return GangReport(phase=GangPhase.ALIVE, ranks=ranks, beats=beats)


BEAT = Beat(rank=0, phase=Phase.COMPUTING, step=7, count=40, step_s_p99=0.1)


class GangsInSteps(FakeGangs):
    """Gangs whose end takes some looks of the watcher."""

    steps = 0

    def end_in_steps(self, ref: AttemptRef) -> bool:
        self.steps += 1
        if self.steps == 2:  # gone now; how it ended is known later
            self.kill(ref)
        return self.steps > 3


def raises(error: Exception) -> Callable[..., NoReturn]:
    """Return what raises that error, whatever it is given."""

    def called(*_: object) -> NoReturn:
        raise error

    return called


class Ticks:
    """The watcher's ticks, 5 s apart, by one process."""

    def __init__(
        self,
        tracks: Tracks,
        ledger: Ledger,
        gangs: FakeGangs,
        orchestrator: FakeOrchestrator,
        clock: FakeClock,
    ) -> None:
        self.world = world_of(
            tracks, ledger, launcher_of=lambda _: gangs, orchestrator=orchestrator
        )
        self.clock = clock
        self.left = LeftGangs(monotonic=lambda: clock().timestamp(), sleep=clock.advance)

    def ended(self, count: int) -> int | None:
        """Return after how many ticks the attempt was closed; None where it was not."""
        for number in range(count):
            if close_lost(self.world, left=self.left).done:
                return number
            self.clock.advance(5.0)
        return None


@pytest.fixture
def ticks(
    tracks: Tracks,
    ledger: Ledger,
    gangs: FakeGangs,
    orchestrator: FakeOrchestrator,
    clock: FakeClock,
) -> Ticks:
    return Ticks(tracks, ledger, gangs, orchestrator, clock)


@pytest.mark.usefixtures("left_run")
def test_a_gang_that_its_dagster_run_let_go_of_trains_on_and_is_asked_for_no_more(
    ticks: Ticks, gangs: FakeGangs
) -> None:
    for number in range(30):
        gangs.reports["r-1", 1] = training(replace(BEAT, count=number))
        assert ticks.ended(1) is None
    assert gangs.calls == []
    [found] = survey(ticks.world).done
    assert plan_launches([found], ticks.clock()).requests == ()


def test_a_gang_that_its_dagster_run_let_go_of_is_closed_when_it_is_gone(
    ticks: Ticks, gangs: FakeGangs, left_run: History
) -> None:
    gangs.reports["r-1", 1] = training(BEAT)
    assert ticks.ended(1) is None
    gangs.end("r-1", 1, RankEnd(rank=0, exit_code=1))
    assert ticks.ended(1) == 0
    ended = ticks.world.tracks.run(left_run.run_id).attempts[0].ended
    assert ended is not None
    assert ended.closed_by == names.WATCH_ATTEMPTS


@pytest.mark.usefixtures("left_run")
def test_a_gang_that_hangs_after_its_dagster_run_let_go_is_ended_with_its_stacks_kept(
    ticks: Ticks, gangs: FakeGangs
) -> None:
    gangs.reports["r-1", 1] = training(BEAT)
    assert ticks.ended(30) == 13  # the first look that is more than 60 s after the first one
    assert [call[0] for call in gangs.calls] == ["dump_stacks", "drain", "kill", "ship"]
    assert ticks.world.tracks.run("r-1").attempts[0].reason is TerminationReason.HANG


@pytest.mark.usefixtures("left_run")
def test_a_gang_that_is_stopped_after_its_dagster_run_let_go_is_drained_then_killed(
    ticks: Ticks, gangs: FakeGangs
) -> None:
    gangs.reports["r-1", 1] = training(replace(BEAT, phase=Phase.SAVING))
    request_stop(ticks.world.tracks, "r-1", mode="drain", by="ann", why="enough")
    began = ticks.clock()
    assert ticks.ended(100) is not None
    assert {call[0] for call in gangs.calls} == {"drain", "kill", "ship"}
    assert (ticks.clock() - began).total_seconds() < DRAIN_GRACE_S + DRAIN_KILL_S + 10


def test_a_place_that_does_not_end_a_gang_whose_ranks_are_over_is_asked_to(
    ticks: Ticks, gangs: FakeGangs, left_run: History
) -> None:
    """As a job of Slurm is RUNNING for ever once the process that runs its script has crashed."""
    began = ticks.clock()
    over = RankEnd(rank=0, exit_code=0, ended_at=format_time(began))
    gangs.reports["r-1", 1] = replace(training(BEAT), ranks=(over,))
    assert ticks.ended(100) is not None
    assert LINGER_S <= (ticks.clock() - began).total_seconds() < LINGER_S + 10
    assert [call[0] for call in gangs.calls] == ["kill", "ship"]
    tracks = ticks.world.tracks
    evidence, _ = read_evidence(tracks.store, tracks.run(left_run.run_id).attempts[0])
    assert evidence is not None
    assert [each.type for each in evidence.conditions] == [LINGERED]


def test_a_gang_that_was_placed_just_now_is_not_lost_by_an_answer_from_before(
    ticks: Ticks, gangs: FakeGangs, left_run: History
) -> None:
    gangs.reports["r-1", 1] = GangReport(phase=GangPhase.NEVER_STARTED, sees_all_nodes=True)
    placed_at = ticks.world.tracks.run(left_run.run_id).attempts[0].placed_at
    assert placed_at is not None
    ticks.clock.advance((placed_at - ticks.clock()).total_seconds() + 1.0)
    assert ticks.ended(10) is None
    assert gangs.calls == []
    assert ticks.ended(10) is not None


@pytest.mark.parametrize("lost", ["the process", "the first step"])
def test_why_a_gang_is_ended_is_known_to_the_process_that_closes_it(
    ticks: Ticks, left_run: History, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    gangs = GangsInSteps()
    ticks.world = replace(ticks.world, launcher_of=lambda _: gangs)
    gangs.reports["r-1", 1] = training(BEAT)
    assert ticks.ended(14) is None
    assert [call[0] for call in gangs.calls] == ["dump_stacks", "drain"]
    if lost == "the process":
        ticks.left = LeftGangs(monotonic=ticks.left.monotonic, sleep=ticks.clock.advance)
        gangs.end("r-1", 1, RankEnd(rank=0, exit_code=names.EXIT_DRAINED))
    else:
        with monkeypatch.context() as once:
            once.setattr(gangs, "end_in_steps", raises(GangError("no answer")))
            assert ticks.ended(1) is None
        gangs.end("r-1", 1, RankEnd(rank=0, exit_code=names.EXIT_DRAINED))
    assert ticks.ended(10) is not None
    assert ticks.world.tracks.run(left_run.run_id).attempts[0].reason is TerminationReason.HANG


@pytest.mark.usefixtures("left_run")
def test_another_dagster_run_may_take_such_a_gang_up_again(
    ticks: Ticks, gangs: FakeGangs, orchestrator: FakeOrchestrator
) -> None:
    gangs.reports["r-1", 1] = training(BEAT)
    orchestrator.put("r-1/a01", "again")
    assert ticks.ended(30) is None
    assert gangs.calls == []


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
    world = world_of(tracks, ledger, launcher_of=lambda _: gangs, orchestrator=orchestrator)
    assert not close_lost(world).done
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
    world = world_of(tracks, ledger, launcher_of=lambda _: gangs, orchestrator=orchestrator)
    tick = close_lost(world)
    assert [run_id for run_id, _ in tick.done] == ["r-2"]
    assert any(problem.startswith("r-1: Record 4 cannot be read") for problem in tick.problems)


def test_where_closing_takes_its_time_the_next_tick_goes_on_after_the_last_one_tried(
    tracks: Tracks,
    ledger: Ledger,
    store: FakeObjectStore,
    gangs: FakeGangs,
    orchestrator: FakeOrchestrator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = ["r-1", "r-2", "r-3"]
    for run_id in runs:
        lost_run(run_id, store, gangs)
        orchestrator.put(f"{run_id}/a01", "dead", is_finished=True)
    Projector(store, ledger).scan()
    now_s, tried, after = 0.0, [], None

    def slow_and_in_vain(*given: object, **_: object) -> None:
        nonlocal now_s
        now_s += 60.0
        tried.append(given[2].run_id)  # type: ignore[attr-defined]
        raise GangError("nobody answers")

    monkeypatch.setattr(watch, "close_attempt", slow_and_in_vain)
    for _ in runs:
        world = world_of(tracks, ledger, launcher_of=lambda _: gangs, orchestrator=orchestrator)
        tick = close_lost(world, TimeSlice(after=after, seconds=lambda: now_s))
        after = tick.cut_at
    assert tried == runs


def test_gangs_are_looked_at_together(
    tracks: Tracks,
    ledger: Ledger,
    store: FakeObjectStore,
    orchestrator: FakeOrchestrator,
) -> None:
    """One that a tick waits for, as for the stacks of one that hangs, keeps no other waiting."""

    class Meeting(FakeGangs):
        met = threading.Barrier(3)

        def glance(self, ref: AttemptRef) -> GangReport:
            self.met.wait(timeout=30)
            return super().glance(ref)

    gangs = Meeting()
    for run_id in ("r-1", "r-2", "r-3"):
        lost_run(run_id, store, gangs)
        orchestrator.put(f"{run_id}/a01", "dead", is_finished=True)
    Projector(store, ledger).scan()
    world = world_of(tracks, ledger, launcher_of=lambda _: gangs, orchestrator=orchestrator)
    assert [found.run_id for found in survey(world).done] == ["r-1", "r-2", "r-3"]
    assert [run_id for run_id, _ in close_lost(world).done] == ["r-1", "r-2", "r-3"]


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
    survey(world_of(tracks, ledger, launcher_of=lambda _: gangs, orchestrator=orchestrator))
    assert [row["step"] for row in ledger.query("select step from checkpoints")] == [10]


def test_every_sensor_decides_its_own_reasons_and_each_reason_has_one(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore, clock: FakeClock
) -> None:
    ends = {"r-1": "preempted", "r-2": "gpu_oom", "r-3": "loss_divergence", "r-4": "storage_io"}
    for run_id, reason in ends.items():
        history = History(run_id).declare().open().supervise().place().restore().commit(10)
        history.end(reason, last_step=12).write_to(store)
    Projector(store, ledger).scan()
    clock.at = BEGIN + timedelta(hours=1)  # after every backoff

    def opened_by(sensor: str) -> list[str]:
        tick = ticked(tracks, ledger, sensor=sensor)
        assert not tick.problems
        return [line.split(":")[0] for line in tick.decided]

    assert opened_by(names.RETRY_PREEMPTED) == ["r-1"]
    assert opened_by(names.RETRY_PREEMPTED) == []
    assert opened_by(names.RETRY_OOM) == ["r-2"]
    assert opened_by(names.RETRY_NUMERICS) == ["r-3"]
    assert opened_by(names.RETRY_INFRASTRUCTURE) == ["r-4"]
    assert opened_by(names.WATCH_ATTEMPTS) == []


def test_finished_and_refused_runs_are_not_looked_at(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    History("open").declare().open().write_to(store)
    refused = History("refused").declare().open().supervise().place().end("code_error")
    refused.refuse().write_to(store)
    Projector(store, ledger).scan()
    assert runs_with_open_attempts(ledger) == ["open"]


def test_a_tick_looks_only_at_the_runs_that_something_is_due_on(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    training = History("training").declare().open().supervise().place()
    failed = History("failed").declare().open().supervise().place().end("preempted")
    drained = History("drained").declare().open().stop("drain").end("user_cancelled")
    new = History("new").declare()
    over = History("over").declare().open().stop().end("user_cancelled").finish("user")
    stopped = History("stopped").declare().open().end("gpu_oom").stop()
    for history in (training, failed, drained, new, over, stopped):
        history.write_to(store)
    Projector(store, ledger).scan()
    assert runs_with_open_attempts(ledger) == ["training"]
    assert sorted(runs_between_attempts(ledger, None)) == ["failed", "new", "stopped"]
    assert runs_between_attempts(ledger, [TerminationReason.PREEMPTED]) == ["failed"]
    store.calls.clear()
    ticked(tracks, ledger, sensor=names.RETRY_PREEMPTED)
    assert {key.split("/")[1] for _, key in store.calls if key.startswith("runs/")} == {"failed"}


def test_a_decision_that_its_maker_never_projected_is_found_and_brought_in(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    history = History("r-1").declare().open().supervise().place().end("preempted")
    history.write_to(store)
    Projector(store, ledger).scan()
    history.open().write_to(store)  # and killed before the ledger heard of it
    tick = ticked(tracks, ledger, sensor=names.RETRY_PREEMPTED)
    assert tick.decided == ()
    assert runs_with_open_attempts(ledger) == ["r-1"]


def test_a_persons_retry_that_was_never_projected_is_found_within_minutes(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    history = History("r-1").declare().open().stop("drain").end("user_cancelled")
    history.write_to(store)
    Projector(store, ledger).scan()
    history.open(cause="manual_retry").write_to(store)
    assert runs_with_open_attempts(ledger) == []
    assert revisit(tracks, ledger, after=None) == Tick()
    assert runs_with_open_attempts(ledger) == ["r-1"]


def test_the_watcher_says_which_runs_wait_for_a_sensor_that_is_off(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    History("r-1").declare().open().supervise().place().end("preempted").write_to(store)
    Projector(store, ledger).scan()
    off = [names.RETRY_PREEMPTED]
    tick = ticked(tracks, ledger, sensor=names.WATCH_ATTEMPTS, off=off)
    assert tick.waiting == ("r-1: waiting: sensor retry_preempted is off",)


def test_a_skip_reason_names_what_waits_run_by_run_and_stays_short() -> None:
    assert skip_reason(Tick(), idle="nothing is due") == "nothing is due"
    few = Tick(decided=("r-1: opened: so",), waiting=("r-2: after its backoff",))
    assert skip_reason(few, idle="-") == "r-1: opened: so; r-2: after its backoff"
    many = Tick(waiting=tuple(f"r-{n}: {'x' * 5000}" for n in range(500)), cut_at="r-7")
    result = skip_reason(many, idle="-")
    assert len(result) < 8000
    assert "… and 480 more" in result
    assert result.endswith("the next tick goes on after r-7")


def test_the_heartbeat_says_when_and_which_sensors_are_on(
    store: FakeObjectStore, clock: FakeClock
) -> None:
    write_heartbeat(store, clock(), {names.RETRY_OOM: False, names.WATCH_ATTEMPTS: True})
    heartbeat = read_heartbeat(store)
    assert heartbeat is not None
    assert heartbeat.at == clock()
    assert heartbeat.sensors == {names.RETRY_OOM: False, names.WATCH_ATTEMPTS: True}


def test_a_broken_track_is_reported_once_a_day_and_fails_no_tick(
    ledger: Ledger, store: FakeObjectStore
) -> None:
    History("good").declare().open().write_to(store)
    store.put(log_key("runs/bad", 0), b"no record")
    projector = Projector(store, ledger)
    part = TickPart(name="scan", work=projector.scan_part, every=SCAN_EVERY)
    ticks, cursor = run_parts([part], None, BEGIN)
    assert (ticks["scan"].is_done, ticks["scan"].cut_at) == (True, None)
    assert "runs/bad" in ticks["scan"].problems[0]
    assert runs_with_open_attempts(ledger) == ["good"]
    again, cursor = run_parts([part], cursor, BEGIN + timedelta(hours=23))
    assert again == {"scan": Tick()}
    tomorrow, _ = run_parts([part], cursor, BEGIN + timedelta(hours=24))
    assert "runs/bad" in tomorrow["scan"].problems[0]


def test_a_scan_that_cannot_reach_the_store_is_made_again_at_the_next_tick(
    ledger: Ledger, store: FakeObjectStore
) -> None:
    History("good").declare().open().write_to(store)
    store.fail("get", 1, Fault.FAILS)
    scanned = Projector(store, ledger).scan_part(None)
    assert (scanned.is_done, scanned.cut_at, len(scanned.problems)) == (False, None, 1)


def test_a_run_whose_declaring_process_was_killed_gets_its_first_attempt(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    History("r-1").declare().write_to(store)
    Projector(store, ledger).scan()
    ticked(tracks, ledger, sensor=names.RETRY_OOM)
    assert tracks.run("r-1").attempts == ()
    for _ in range(2):
        ticked(tracks, ledger, sensor=names.WATCH_ATTEMPTS)
        [attempt] = tracks.run("r-1").attempts
        assert attempt.opened.decided_by == names.WATCH_ATTEMPTS


def test_a_preemption_while_nobody_supervised_is_closed_and_then_decided(
    tracks: Tracks,
    ledger: Ledger,
    store: FakeObjectStore,
    gangs: FakeGangs,
    orchestrator: FakeOrchestrator,
    clock: FakeClock,
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
    close_lost(world_of(tracks, ledger, launcher_of=lambda _: gangs, orchestrator=orchestrator))
    clock.advance(2)  # no device time is known of it: a retry is free, and waits its backoff
    ticked(tracks, ledger, sensor=names.RETRY_PREEMPTED)
    first, second = tracks.run("r-1").attempts
    assert first.reason is TerminationReason.PREEMPTED
    assert second.opened.decided_by == names.RETRY_PREEMPTED
    evidence = json.loads(store.objects[first.ended.evidence_key]) if first.ended else {}
    assert evidence["dagster"]["dagster_run_id"] == "dead"


# Which partitions leave Dagster's UI, and that nothing of an unfinished run does.


DAY = timedelta(days=1)
KEYS = ["old/a01", "old/a02", "new/a01/step-10", "open/a01", "older/loss@40"]
FINISHED = {"old": BEGIN - 91 * DAY, "older": BEGIN - 92 * DAY, "new": BEGIN - 2 * DAY}


@pytest.mark.parametrize(
    ("days", "keys_max", "left"),
    [
        (90, 100, ["older/loss@40", "old/a01", "old/a02"]),
        (91.5, 100, ["older/loss@40"]),
        (1000, 100, []),
        (1000, 5, []),
        (1000, 3, ["older/loss@40", "old/a01"]),  # 5 keys, 2 too many: the oldest
        (1000, 0, ["older/loss@40", "old/a01", "old/a02", "new/a01/step-10"]),  # never open ones
    ],
)
def test_what_is_old_or_too_much_leaves_and_the_first_to_finish_goes_first(
    days: float, keys_max: int, left: list[str]
) -> None:
    assert leaving(KEYS, FINISHED, BEGIN, keep_days=days, keys_max=keys_max) == left


def test_a_run_that_finished_today_stays_however_many_there_are() -> None:
    finished = {"old": BEGIN - timedelta(hours=23)}
    assert leaving(KEYS, finished, BEGIN, keep_days=90, keys_max=0) == []


def test_an_end_that_takes_more_than_one_look_keeps_why_it_was_decided(
    tracks: Tracks,
    ledger: Ledger,
    orchestrator: FakeOrchestrator,
    left_run: History,
    clock: FakeClock,
) -> None:
    gangs = GangsInSteps()
    gangs.reports["r-1", 1] = training(BEAT)
    found = Ticks(tracks, ledger, gangs, orchestrator, clock).ended(100)
    assert found is not None
    assert gangs.steps == 4
    assert tracks.run("r-1").attempts[0].reason == TerminationReason.HANG
