"""A gang that hangs is ended by its supervisor, with its stacks kept before."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.evidences import leave_word
from tests.fakes import FakeClock, FakeGangs, FakeObjectStore, FakeOrchestrator
from tests.histories import History
from tracks_dagster.attempts.effects.supervise import Supervisor
from tracks_dagster.attempts.ports import GangPhase, GangReport
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.reasons.evidence import RankEnd
from tracks_dagster.reasons.hangs import Beat, Phase, StackDump
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.track.bodies import Drill
from tracks_dagster.track.errors import GangError
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Kind, sha256_hex
from tracks_dagster.track.states.run_state import AttemptState

ROUNDS_MAX = 2000
STUCK = (
    Beat(rank=0, phase=Phase.COMPUTING, step=7, count=40, step_s_p99=0.1),
    Beat(rank=1, phase=Phase.WAITING_FOR_DATA, step=7, count=39, step_s_p99=0.1),
)
WORD = "launch-1/exit/rank-0.json"
BOTH_ENDED = (RankEnd(rank=0, exit_code=0), RankEnd(rank=1, exit_code=0))
DUMPS = (StackDump(rank=0, text="stack of 0"), StackDump(rank=1, text="stack of 1"))


@pytest.fixture
def gangs() -> FakeGangs:
    return FakeGangs()


@pytest.fixture
def history() -> History:
    return History("r-1").declare().open()


class Killed(Exception):
    """Stands for the end of the supervisor's own process."""


def watch(
    tracks: Tracks,
    gangs: FakeGangs,
    clock: FakeClock,
    *,
    each_look: Callable[[int], None] = lambda number: None,
) -> AttemptState | None:
    """Supervise attempt 1 on a clock that moves a second with every look."""
    looks = 0

    def sleep(seconds: float) -> None:
        nonlocal looks
        looks += 1
        assert looks < ROUNDS_MAX, "the supervisor does not end"
        clock.advance(seconds)
        each_look(looks)

    def die() -> None:
        raise Killed

    return Supervisor(
        tracks=tracks,
        gangs=gangs,
        orchestrator=FakeOrchestrator(),
        foresee=lambda *_: {},
        policy=DEFAULT_POLICY,
        dagster_run_id="mine",
        host="node-1",
        sleep=sleep,
        on_growth=lambda state: None,
        monotonic=lambda: clock().timestamp(),
        die=die,
    ).supervise("r-1", 1)


def alive(*beats: Beat) -> GangReport:
    ranks = tuple(RankEnd(rank=beat.rank) for beat in beats)
    return GangReport(phase=GangPhase.ALIVE, ranks=ranks, beats=beats)


def test_a_gang_that_stands_still_is_dumped_drained_and_closed_by_name_of_the_laggard(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, history: History, clock: FakeClock
) -> None:
    history.supervise().place().restore().write_to(store)
    gangs.reports["r-1", 1] = alive(*STUCK)
    gangs.dumps = DUMPS
    began = clock()
    attempt = watch(tracks, gangs, clock)
    assert attempt is not None
    assert attempt.ended is not None
    assert attempt.reason is TerminationReason.DATA_LOADER_STALL
    assert (attempt.ended.rule, attempt.ended.blamed_node) == ("hung", "node-1")
    assert attempt.ended.lines[0].startswith("rank 1 of 2 has not moved for 61 s (limit 60 s)")
    assert 60 <= (clock() - began).total_seconds() <= 70
    assert [call[0] for call in gangs.calls] == ["dump_stacks", "drain", "kill", "ship"]
    evidence = json.loads(store.objects[attempt.ended.evidence_key])
    for dump in DUMPS:
        key = f"runs/r-1/attempts/1/evidence/{sha256_hex(dump.text.encode())}.txt"
        assert store.objects[key] == dump.text.encode()
        assert f"stacks of rank {dump.rank}: {key}" in evidence["conditions"][0]["message"]
    assert evidence["beats"]["1"] == "waits for data in step 7"


def test_a_gang_that_moves_is_left_alone(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, history: History, clock: FakeClock
) -> None:
    history.supervise().place().write_to(store)
    leave_word(store, WORD, "completed")

    def move(number: int) -> None:
        beats = [replace(beat, count=number // 50) for beat in STUCK]
        gangs.reports["r-1", 1] = alive(*beats)
        if number == 500:
            gangs.end("r-1", 1, *BOTH_ENDED)

    gangs.reports["r-1", 1] = alive(*STUCK)
    attempt = watch(tracks, gangs, clock, each_look=move)
    assert attempt is not None
    assert attempt.reason is TerminationReason.COMPLETED
    assert "dump_stacks" not in {call[0] for call in gangs.calls}


def test_a_machine_that_slept_for_an_hour_has_not_hung(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, history: History, clock: FakeClock
) -> None:
    history.supervise().place().write_to(store)
    leave_word(store, WORD, "completed")

    def sleep_long(number: int) -> None:
        if number == 20:
            clock.advance(3600.0)
        if number == 40:
            gangs.end("r-1", 1, *BOTH_ENDED)

    gangs.reports["r-1", 1] = alive(*STUCK)
    attempt = watch(tracks, gangs, clock, each_look=sleep_long)
    assert attempt is not None
    assert attempt.reason is TerminationReason.COMPLETED


def test_a_launcher_that_cannot_dump_keeps_nobody_from_ending_the_gang(
    tracks: Tracks, store: FakeObjectStore, history: History, clock: FakeClock
) -> None:
    class CannotDump(FakeGangs):
        def dump_stacks(self, ref: AttemptRef) -> tuple[StackDump, ...]:
            raise GangError("the node does not answer")

    gangs = CannotDump()
    history.supervise().place().write_to(store)
    gangs.reports["r-1", 1] = alive(*STUCK)
    attempt = watch(tracks, gangs, clock)
    assert attempt is not None
    assert attempt.ended is not None
    assert attempt.reason is TerminationReason.DATA_LOADER_STALL
    assert any("the node does not answer" in line for line in attempt.ended.lines)


@pytest.mark.parametrize("ends", [False, True])
def test_a_gang_that_goes_on_or_ends_while_its_stacks_are_taken_is_not_ended_for_a_hang(
    tracks: Tracks, store: FakeObjectStore, history: History, clock: FakeClock, ends: bool
) -> None:
    class WakesUp(FakeGangs):
        def dump_stacks(self, ref: AttemptRef) -> tuple[StackDump, ...]:
            if ends:
                self.end("r-1", 1, *BOTH_ENDED)
            else:
                self.reports["r-1", 1] = alive(*(replace(beat, count=99) for beat in STUCK))
            return super().dump_stacks(ref)

    def end(number: int) -> None:
        if number == 100:
            gangs.end("r-1", 1, *BOTH_ENDED)

    gangs = WakesUp()
    history.supervise().place().write_to(store)
    leave_word(store, WORD, "completed")
    gangs.reports["r-1", 1] = alive(*STUCK)
    attempt = watch(tracks, gangs, clock, each_look=end)
    assert attempt is not None
    assert attempt.reason is TerminationReason.COMPLETED
    assert "drain" not in {call[0] for call in gangs.calls}


def test_the_drill_on_the_supervisor_fires_once_and_ends_nothing_but_itself(
    tracks: Tracks, store: FakeObjectStore, gangs: FakeGangs, clock: FakeClock
) -> None:
    history = History("r-1").declare(drills=(Drill(kind="kill_run_worker", step=6),))
    history.open().supervise().place().write_to(store)
    leave_word(store, WORD, "completed")
    gangs.reports["r-1", 1] = alive(*STUCK)  # in step 7: 6 steps are done
    with pytest.raises(Killed):
        watch(tracks, gangs, clock)
    notes = [r.body["text"] for r in tracks.records("runs/r-1") if r.kind is Kind.NOTE]
    assert notes == ["Drill kill_run_worker@6 fires."]
    assert gangs.calls == []
    gangs.end("r-1", 1, *BOTH_ENDED)
    attempt = watch(tracks, gangs, clock)  # the next one adopts the gang and lives
    assert attempt is not None
    assert attempt.reason is TerminationReason.COMPLETED
