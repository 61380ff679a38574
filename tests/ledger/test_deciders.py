"""The one driver of deciders, with a planted one: due, decided, raced, cut, and asked in order."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from tests.deciders import settled_run, world_of
from tests.fakes import FakeClock, FakeObjectStore, Fault, SequentialUids
from tests.histories import History
from tests.stage_gates import StageGates
from tracks_dagster.attempts.effects.world import World
from tracks_dagster.ledger.deciding import Answer, Append, First, Wait
from tracks_dagster.ledger.effects.deciding import decide_due, settle, settle_all
from tracks_dagster.ledger.effects.ticks import TimeSlice
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.track.bodies import Alert, Note
from tracks_dagster.track.errors import Contended, RecordTooLarge
from tracks_dagster.track.records import Draft, Kind
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.track import DECISIONS_MAX, log_key


def write(tracks: Tracks, store: FakeObjectStore, run_id: str = "r-1", step: int = 20) -> History:
    history = History(run_id).declare(stage="smoke").open().place().restore().commit(step)
    history.write_to(store)
    tracks.project(history.name)
    return history


def passed(tracks: Tracks, run_id: str = "r-1") -> list[str]:
    return [note.body.text for note in tracks.run(run_id).notes]


def test_it_decides_once_on_the_runs_that_are_due_and_says_what_the_others_wait_for(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    write(tracks, store, "r-1", 20)
    write(tracks, store, "r-2", 10)
    full = History("full").declare(stage="full").open().place().restore().commit(40)
    full.write_to(store)
    tracks.project(full.name)
    world = world_of(tracks, ledger)
    tick = decide_due(world, [StageGates()])
    assert tick.decided == ("r-1: passed: Passed at step 20.",)
    assert tick.waiting == ("r-2: step 10 of 20",)
    assert [each.record.seq for each in tick.done if each.record] == [tracks.run("r-1").head.seq]
    again = decide_due(world, [StageGates()])
    assert (again.decided, again.problems) == ((), ())
    assert (passed(tracks, "r-1"), passed(tracks, "full")) == (["Passed at step 20."], [])


def test_its_record_is_in_the_ledger_when_it_has_decided(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    write(tracks, store)
    settle(world_of(tracks, ledger), StageGates(), "r-1")
    [row] = ledger.query("select author from notes")
    assert row["author"] == "stage_gates"


@dataclass(frozen=True, slots=True, kw_only=True)
class Raced(StageGates):
    """Another record comes first, between its answer and the append, as often as is asked for."""

    other: Tracks
    answers: list[int] = field(default_factory=list)
    races: int = 1

    def decide(self, state: RunState, world: World) -> Answer:
        answer = StageGates.decide(self, state, world)
        self.answers.append(state.head.seq)
        if len(self.answers) <= self.races:
            note = Note(by="ann", text=f"I was first, {len(self.answers)}.")
            self.other.note_run(state.run_id, self.other.draft(Kind.NOTE, note))
        return answer


def test_a_decider_that_lost_its_place_is_asked_again_on_the_newer_state(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore, clock: FakeClock
) -> None:
    head = write(tracks, store).state.head.seq
    other = Tracks(store, now=clock, new_uid=lambda: "f" * 32, project=lambda track: None)
    raced = Raced(other=other)
    settled = settle(world_of(tracks, ledger), raced, "r-1")
    assert raced.answers == [head, head + 1]
    assert (settled.what, settled.record and settled.record.seq) == ("passed", head + 2)


def test_a_decider_that_always_loses_gives_up_with_nothing_written(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore, clock: FakeClock
) -> None:
    write(tracks, store)
    uids = iter(f"{number:032x}" for number in range(10_000, 20_000))
    other = Tracks(store, now=clock, new_uid=lambda: next(uids), project=lambda track: None)
    with pytest.raises(Contended, match="lost its place 64 times"):
        settle(world_of(tracks, ledger), Raced(other=other, races=10_000), "r-1")
    assert len(passed(tracks)) == DECISIONS_MAX
    assert all(text.startswith("I was first") for text in passed(tracks))


def test_a_reply_that_was_lost_leads_to_one_record(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    write(tracks, store)
    store.fail("create", 1, Fault.LOST_AFTER)
    assert settle(world_of(tracks, ledger), StageGates(), "r-1").what == "passed"
    assert passed(tracks) == ["Passed at step 20."]


def test_one_runs_trouble_keeps_no_other_waiting(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    for run_id in ("r-1", "r-2"):
        write(tracks, store, run_id)
    store.put(log_key("runs/r-1", tracks.run("r-1").head.seq + 1), b"no record")
    tick = decide_due(world_of(tracks, ledger), [StageGates()])
    assert tick.decided == ("r-2: passed: Passed at step 20.",)
    assert [problem.split(":")[0] for problem in tick.problems] == ["r-1"]


def test_where_time_runs_out_the_next_tick_goes_on_and_each_run_has_its_turn(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    run_ids = [f"r-{number}" for number in range(5)]
    for run_id in run_ids:
        write(tracks, store, run_id)
    now_s, after, ticks = 0.0, None, []

    def slow() -> float:
        nonlocal now_s
        now_s += 6.0  # two begin in the ten seconds of a part
        return now_s

    for _ in range(3):
        tick = decide_due(
            world_of(tracks, ledger), [StageGates()], TimeSlice(after=after, seconds=slow)
        )
        ticks.append(len(tick.decided))
        after = tick.cut_at
    assert ticks == [2, 2, 1]
    assert all(passed(tracks, run_id) for run_id in run_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Careful(StageGates):
    """Has work done before its record, and tells a person while it waits."""

    worked: list[str] = field(default_factory=list)

    def decide(self, state: RunState, world: World) -> Answer:
        answer = StageGates.decide(self, state, world)
        if isinstance(answer, Wait):
            is_known = any(alert.body.text == answer.why for alert in state.alerts)
            alert = None if is_known else Alert(rule="stage_gate", text=answer.why)
            return replace(answer, alert=alert)
        if not isinstance(answer, Append) or self.worked:
            return answer
        return First(do=lambda: self.worked.append(state.run_id))


def test_work_that_comes_first_is_done_before_the_record_and_a_wait_is_reported_once(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    write(tracks, store, "r-1", 20)
    write(tracks, store, "r-2", 10)
    world, careful = world_of(tracks, ledger), Careful()
    ticks = [decide_due(world, [careful], TimeSlice()) for _ in range(2)]
    assert careful.worked == ["r-1"]
    assert ticks[0].decided == ("r-1: passed: Passed at step 20.", "r-2: paused: step 10 of 20")
    assert (ticks[1].decided, ticks[1].waiting) == ((), ("r-2: step 10 of 20",))
    assert [alert.body.rule for alert in tracks.run("r-2").alerts] == ["stage_gate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting(StageGates):
    """Makes several records in one look at a run, each on the state with the one before."""

    def decide(self, state: RunState, world: World) -> Answer:
        count = len(state.notes)
        if count == 3:
            return None
        draft: Draft = world.tracks.draft(Kind.NOTE, Note(by=self.name, text=f"{count}"))
        return Append(draft=draft, what="counted", why=f"{count}", is_last=False)


def test_several_deciders_of_one_run_are_asked_in_order_each_on_what_the_others_left(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    write(tracks, store)
    tick = settle_all(world_of(tracks, ledger), [Counting(name="counts"), StageGates()], "r-1")
    assert tick.decided == ("r-1: counted: 2", "r-1: passed: Passed at step 20.")
    assert passed(tracks) == ["0", "1", "2", "Passed at step 20."]


# A decision whose record would be too large ends in a refusal, not in a tick that fails for ever.


def filled_to_the_brim() -> History:
    """A run whose first attempt just fits its record, and which ended."""
    for size in range(16_384, 0, -50):
        config = {"steps": 40, "seed": 7, "words": "x" * size}
        try:
            history = History().declare().open(config=config)
            history.write_to(FakeObjectStore())
        except RecordTooLarge:
            continue
        return history.place().end("preempted", last_step=5)
    pytest.fail("no config is small enough")


def test_it_is_refused_once_and_the_refusal_says_what_is_too_large_and_what_to_do(
    store: FakeObjectStore, clock: FakeClock, new_uid: SequentialUids
) -> None:
    history = filled_to_the_brim()
    history.write_to(store)
    clock.at = history.at
    clock.advance(3600)
    tracks = Tracks(store, now=clock, new_uid=new_uid, project=lambda name: None)
    whats = []
    for _ in range(2):
        settled = settled_run(tracks, "r-1")
        whats.append(settled.what)
    assert whats == ["refused", "waiting"]
    [refusal] = tracks.run("r-1").refusals
    assert (refusal.body.reason, refusal.body.limit) == ("preempted", "record")
    assert "Cannot append attempt_opened: it is 16" in refusal.body.decision
    assert "the limit is 16384" in refusal.body.decision
    assert "The largest part of it is config" in refusal.body.decision
    assert "tracks retry r-1" in refusal.body.what_to_do
    kinds = [record.kind for record in tracks.records("runs/r-1")]
    assert kinds.count(Kind.ATTEMPT_OPENED) == 1
