"""Attempts and evals start on devices that nobody else has; the rest waits in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from tests.bodies import BEGIN, CONFIG, declared
from tests.deciders import world_of
from tests.fakes import (
    FakeClock,
    FakeGangs,
    FakeObjectStore,
    FakeOrchestrator,
    Fault,
    SequentialUids,
)
from tests.histories import History
from tracks_dagster.attempts.effects.sharing import (
    describe_running,
    devices_since,
    lease_for,
    share_devices,
    waiting_launches,
)
from tracks_dagster.attempts.effects.watch import survey
from tracks_dagster.attempts.effects.world import World
from tracks_dagster.attempts.launch import plan_launches
from tracks_dagster.attempts.ports import GangPhase, GangReport
from tracks_dagster.evals.effects.tick import tick_evals
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.retry.policy import RetryPolicy
from tracks_dagster.scheduling.effects.leases import DevicePool, Shared
from tracks_dagster.scheduling.effects.recurrence import PastTimes
from tracks_dagster.scheduling.leases import LEASE_S_MAX, Found, Here, Holder
from tracks_dagster.scheduling.model import Demand, Device, Plan, Running, Start
from tracks_dagster.stores.journals import journal_prefix
from tracks_dagster.track.bodies import SCHEDULER, ComputeRequest, MemoryPeak
from tracks_dagster.track.errors import InvalidInput, StoreUnavailable
from tracks_dagster.track.names import AttemptRef, pool_track
from tracks_dagster.track.records import canonical_json, format_time
from tracks_dagster.track.track import log_key

HERE = Here(node="box", boot_id="boot-1", machine_id="m-1")
GIB = 2**30
EVAL_KEY = "r-1/heldout-loss@40/1"


def devices(count: int) -> Callable[[frozenset[str]], Found]:
    found = Found(devices=tuple(Device(name=f"pretended:{n}") for n in range(count)))
    return lambda leased: found


def pool_of(own: Tracks, count: int = 2, **changes: Any) -> DevicePool:
    fields: dict[str, Any] = {
        "here": HERE,
        "tracks": own,
        "runs": lambda url: own,
        "store": own.store.url,
        "look": devices(count),
    }
    return DevicePool(**fields | changes)


def opened(tracks: Tracks, run_id: str, ranks: int = 1, **changes: object) -> History:
    """Write a run whose first attempt waits to be started; each is older than the next."""
    begin = BEGIN + timedelta(seconds=int(run_id.rpartition("-")[2]))
    compute = ComputeRequest(ranks=ranks)
    history = History(run_id, begin=begin).declare(compute=compute, **changes).open(compute=compute)
    return written(tracks, history)


def written(tracks: Tracks, history: History) -> History:
    history.write_to(tracks.store)
    tracks.project(history.name)
    return history


def shared(world: World) -> Shared:
    found = share_devices(world, survey(world).done, by="tests")
    assert found is not None
    return found


def given(pool: DevicePool, key: str, *devices: str) -> frozenset[str]:
    """Let another home lease to a run of its own."""
    plan = Plan(starts=(Start(key=key, devices=devices, why="it is first"),))
    demand = Demand(key=key, count=len(devices))
    return pool.share((demand,), lambda *_: plan, lambda _, running: running, by="theirs").leased


def held(pool: DevicePool) -> dict[str, tuple[str, ...]]:
    state = pool.tracks.find_pool(HERE.pool)
    return {each.body.key: each.body.devices for each in (state.leases if state else ())}


def test_what_fits_is_leased_and_the_rest_waits_with_a_sentence(
    tracks: Tracks, ledger: Ledger
) -> None:
    for number in (1, 2, 3):
        opened(tracks, f"r-{number}")
    pool = pool_of(tracks)
    world = world_of(tracks, ledger, devices=pool)
    found = shared(world)
    assert found.leased == {"r-1/a01", "r-2/a01"}
    assert held(pool) == {"r-1/a01": ("pretended:0",), "r-2/a01": ("pretended:1",)}
    (waits,) = waiting_launches(found)
    assert (waits.key, waits.waits) == ("r-3/a01", True)
    assert "0 of 2 devices free" in waits.why
    plan = plan_launches(survey(world).done, tracks.now(), may_start=found.may_start)
    assert [request.attempt_key for request in plan.requests] == ["r-1/a01", "r-2/a01"]
    assert shared(world) == found  # and nothing is written again
    state = pool.tracks.find_pool(HERE.pool)
    assert state is not None
    assert state.head.seq == 1


def test_an_end_frees_devices_without_a_record_of_its_own(tracks: Tracks, ledger: Ledger) -> None:
    first = opened(tracks, "r-1", ranks=2)
    opened(tracks, "r-2", ranks=2)
    pool = pool_of(tracks)
    world = world_of(tracks, ledger, devices=pool)
    assert shared(world).leased == {"r-1/a01"}
    pool.confirm("r-1/a01", "dagster-1")
    written(tracks, first.supervise().place().end("unknown"))
    assert shared(world).leased == {"r-2/a01"}
    state = pool.tracks.find_pool(HERE.pool)
    assert state is not None
    assert [lease.body.freed for lease in state.leases] == [(0,)]


def test_a_lease_that_nobody_confirms_is_given_on_and_its_late_supervisor_starts_nothing(
    tracks: Tracks, ledger: Ledger, clock: FakeClock
) -> None:
    opened(tracks, "r-1")
    dagster = FakeOrchestrator()
    pool = pool_of(tracks, 1)
    world = world_of(tracks, ledger, devices=pool, orchestrator=dagster)
    shared(world)
    dagster.put("r-1/a01", "dagster-1")  # on its way, and never comes
    opened(tracks, "r-2")
    assert shared(world).leased == frozenset()
    clock.advance(LEASE_S_MAX + 1)
    assert shared(world).leased == {"r-2/a01"}
    assert pool.confirm("r-1/a01", "dagster-1") is None
    assert pool.confirm("r-2/a01", "dagster-2") is not None
    clock.advance(LEASE_S_MAX + 1)
    dagster.put("r-1/a01", "dagster-1", is_finished=True)
    assert shared(world).leased == {"r-2/a01"}  # what has begun keeps its devices


def test_a_confirmation_and_a_new_lease_race_for_one_record(
    tracks: Tracks, ledger: Ledger, clock: FakeClock, store: FakeObjectStore
) -> None:
    """The supervisor of r-1 comes after this process has found its lease to be over."""
    opened(tracks, "r-1")
    pool = pool_of(tracks, 1)
    shared(world_of(tracks, ledger, devices=pool))
    opened(tracks, "r-2")
    clock.advance(LEASE_S_MAX + 1)
    other = Tracks(store, now=clock, new_uid=lambda: "f" * 32, project=lambda _: None)
    looks: list[bool] = []

    def look(leased: frozenset[str]) -> Found:
        looks.append(pool_of(other).confirm("r-1/a01", "dagster-1") is not None)
        return pool.look(leased)

    dagster = FakeOrchestrator()
    dagster.put("r-1/a01", "dagster-1")
    world = world_of(tracks, ledger, devices=replace(pool, look=look), orchestrator=dagster)
    assert shared(world).leased == frozenset()
    assert looks == [True, True]  # the lease of r-2 lost its place, and was not written
    assert list(held(pool)) == ["r-1/a01"]


def test_who_starts_under_a_lease_reads_nothing_of_the_pool_before_it(
    tracks: Tracks, ledger: Ledger, clock: FakeClock, store: FakeObjectStore
) -> None:
    pool = pool_of(tracks)
    world = world_of(tracks, ledger, devices=pool)
    opened(tracks, "r-1")
    shared(world)
    pool.confirm("r-1/a01", "dagster-1")
    second = opened(tracks, "r-2")
    assert shared(world).seqs == {"r-1/a01": 0, "r-2/a01": 2}

    def worker(seq: int | None) -> DevicePool:
        own = Tracks(store, now=clock, new_uid=lambda: "e" * 32, project=lambda _: None)
        found = devices_since(pool_of(own), "r-2/a01", None if seq is None else str(seq))
        assert found is not None
        return found

    calls = len(store.calls)
    lease = worker(2).confirm("r-2/a01", "dagster-2")
    assert lease is not None
    assert (lease.seq, lease.body.devices) == (2, ("pretended:1",))
    read = {key for method, key in store.calls[calls:] if method == "get"}
    assert not read & {log_key(pool_track(HERE.pool), seq) for seq in (0, 1)}
    for seq in (None, 1, 3, 99):  # not known, no lease of it, not there
        again = worker(seq).confirm("r-2/a01", "dagster-2")
        assert again is not None
        assert again.seq == 2
    late = worker(2)
    written(tracks, second.supervise().place().end("unknown"))
    opened(tracks, "r-3")
    assert shared(world).leased == {"r-1/a01", "r-3/a01"}
    assert late.confirm("r-2/a01", "dagster-2") is None
    assert worker(2).find("r-2/a01") is None


def test_two_homes_of_one_machine_share_its_devices(
    tracks: Tracks, ledger: Ledger, clock: FakeClock, new_uid: SequentialUids
) -> None:
    theirs, common = (
        Tracks(FakeObjectStore(url), now=clock, new_uid=new_uid, project=lambda _: None)
        for url in ("memory://theirs", "memory://pool")
    )
    by_url = {tracks.store.url: tracks, theirs.store.url: theirs}
    ours = pool_of(tracks, tracks=common, runs=by_url.__getitem__)
    stranger = replace(ours, store=theirs.store.url)
    foreign = opened(theirs, "r-7")
    assert given(stranger, "r-7/a01", "pretended:0")
    opened(tracks, "r-1")
    opened(tracks, "r-2")
    assert shared(world_of(tracks, ledger, devices=ours)).leased == {"r-1/a01"}
    stranger.confirm("r-7/a01", "dagster-7")
    foreign.supervise().place().end("unknown").write_to(theirs.store)
    assert shared(world_of(tracks, ledger, devices=ours)).leased == {"r-1/a01", "r-2/a01"}


def test_what_cannot_be_read_stays_leased_in_words(
    tracks: Tracks, ledger: Ledger, clock: FakeClock, new_uid: SequentialUids
) -> None:
    gone = FakeObjectStore("memory://gone")
    theirs = Tracks(gone, now=clock, new_uid=new_uid, project=lambda _: None)
    by_url = {tracks.store.url: tracks, gone.url: theirs}
    ours = pool_of(tracks, 1, runs=by_url.__getitem__)
    opened(theirs, "r-7")
    stranger = replace(ours, store=gone.url)
    given(stranger, "r-7/a01", "pretended:0")
    stranger.confirm("r-7/a01", "dagster-7")
    opened(tracks, "r-1")
    gone.fail("get", 1, Fault.FAILS)
    found = shared(world_of(tracks, ledger, devices=ours))
    assert found.leased == frozenset()
    (words,) = found.problems
    assert "pretended:0 stay leased to r-7/a01" in words


@pytest.fixture
def lost(
    tracks: Tracks, ledger: Ledger, clock: FakeClock, new_uid: SequentialUids
) -> tuple[World, list[str]]:
    """A machine whose one device was given to a run of another home, and is wanted by one of ours; and
    the URLs of the stores that are away: none yet."""
    url, away = "memory://theirs", list[str]()
    theirs = Tracks(FakeObjectStore(url), now=clock, new_uid=new_uid, project=lambda _: None)

    def runs(asked: str) -> Tracks:
        if asked in away:
            raise StoreUnavailable(f"There is no store at {asked}.")
        return theirs if asked == url else tracks

    ours = pool_of(tracks, 1, runs=runs)
    opened(theirs, "r-7")
    stranger = replace(ours, store=url)
    given(stranger, "r-7/a01", "pretended:0")
    stranger.confirm("r-7/a01", "dagster-7")
    opened(tracks, "r-1")
    return world_of(tracks, ledger, devices=ours), away


def test_a_person_gives_back_what_is_leased_to_a_run_that_nobody_can_read(
    lost: tuple[World, list[str]],
) -> None:
    world, away = lost
    pool = world.devices
    assert pool is not None
    away.append("memory://theirs")
    (words,) = shared(world).problems
    assert 'tracks pool free local/box r-7/a01 --why "…"' in words
    record = pool.release("r-7/a01", by="ann", why="that home was removed")
    assert record is not None
    assert (record.body["lease_seq"], record.body["by"]) == (0, "ann")
    assert (
        pool.confirm("r-7/a01", "dagster-7") is None
    )  # anyone who comes for it still starts nothing
    assert shared(world).leased == {"r-1/a01"}


@pytest.mark.parametrize(
    ("changes", "is_away", "words"),
    [
        ({}, False, "its track in memory://theirs can be read, and says that it is open"),
        ({"lives": lambda body: True}, True, "its gang lives on this machine"),
        (
            {
                "look": lambda leased: Found(
                    devices=(Device(name="pretended:0", out="pid 4711 (python) of ada holds it"),)
                )
            },
            True,
            "pid 4711 (python) of ada holds it",
        ),
        ({"look": lambda leased: Found(problem="no answer")}, True, "no answer"),
        ({"here": replace(HERE, machine_id="m-2")}, True, "is used by two machines"),
    ],
)
def test_nothing_is_given_back_on_which_something_may_run(
    lost: tuple[World, list[str]], changes: dict[str, Any], is_away: bool, words: str
) -> None:
    world, away = lost
    assert world.devices is not None
    pool = replace(world.devices, **changes)
    if is_away:
        away.append("memory://theirs")
    with pytest.raises(InvalidInput) as refused:
        pool.release("r-7/a01", by="ann", why="it looks free")
    assert words in str(refused.value)
    with pytest.raises(InvalidInput, match="r-8/a01 has no devices; those that have: r-7/a01"):
        pool.release("r-8/a01", by="ann", why="a typing error")
    assert held(pool) == {"r-7/a01": ("pretended:0",)}


@pytest.mark.parametrize(
    ("look", "words"),
    [
        (lambda _: Found(problem="nvidia-smi did not answer"), "nvidia-smi did not answer"),
        (devices(0), ""),
    ],
)
def test_nothing_starts_while_nobody_knows_the_devices(
    tracks: Tracks, ledger: Ledger, look: Callable[[frozenset[str]], Found], words: str
) -> None:
    opened(tracks, "r-1")
    found = shared(world_of(tracks, ledger, devices=pool_of(tracks, look=look)))
    assert found.leased == frozenset()
    assert all(words in each.why for each in found.waits)
    assert not found.may_start("r-1/a01")


def test_an_unreadable_pool_keeps_new_gangs_waiting_and_no_living_one_alone(
    tracks: Tracks, ledger: Ledger, clock: FakeClock, new_uid: SequentialUids
) -> None:
    down = FakeObjectStore("memory://pool")
    pool = pool_of(tracks, tracks=Tracks(down, now=clock, new_uid=new_uid, project=lambda _: None))
    gangs = FakeGangs()
    opened(tracks, "r-1")
    opened(tracks, "r-2")
    gangs.reports["r-1", 1] = GangReport(phase=GangPhase.ALIVE)
    world = world_of(tracks, ledger, devices=pool, launcher_of=lambda _: gangs)
    down.fail("get", 1, Fault.FAILS)
    found = shared(world)
    (waits,) = found.waits
    assert (waits.key, "nobody can tell who has the devices" in waits.why) == ("r-2/a01", True)
    plan = plan_launches(survey(world).done, tracks.now(), may_start=found.may_start)
    assert [request.attempt_key for request in plan.requests] == ["r-1/a01"]  # adopted


def test_an_attempt_that_may_not_be_asked_for_yet_holds_nothing(
    tracks: Tracks, ledger: Ledger, clock: FakeClock
) -> None:
    opened(tracks, "r-1")
    opened(tracks, "r-2")
    dagster = FakeOrchestrator()
    dagster.put("r-1/a01", "dead", is_finished=True, ended_at=clock())
    pool = pool_of(tracks, 1)
    assert shared(world_of(tracks, ledger, devices=pool, orchestrator=dagster)).leased == {
        "r-2/a01"
    }


def test_a_start_by_hand_in_dagster_waits_its_turn_too(tracks: Tracks, ledger: Ledger) -> None:
    opened(tracks, "r-1")
    opened(tracks, "r-2")
    dagster = FakeOrchestrator()
    dagster.put("r-2/a01", "by-hand")
    pool = pool_of(tracks, 1)
    world = world_of(tracks, ledger, devices=pool, orchestrator=dagster)
    lease_for(world, "r-2/a01", by="tests", dagster_run_id="by-hand")
    assert list(held(pool)) == ["r-1/a01"]
    more = replace(world, devices=replace(pool, look=devices(2)))
    lease_for(more, "r-2/a01", by="tests", dagster_run_id="by-hand")
    assert list(held(pool)) == ["r-1/a01", "r-2/a01"]


def test_an_eval_is_asked_for_once_it_has_a_device_and_comes_before_training(
    tracks: Tracks, ledger: Ledger
) -> None:
    trained = History("r-1").declare().open().supervise().place().restore().commit(40)
    written(tracks, trained.end("completed", last_step=40))
    opened(tracks, "r-2", ranks=2)
    pool = pool_of(tracks)
    world = world_of(tracks, ledger, devices=pool)
    requests = [r for run in tick_evals(world).done for r in run.requests]
    assert [request.attempt_key for request in requests] == [EVAL_KEY]
    assert list(held(pool)) == [EVAL_KEY]
    assert shared(world).leased == {EVAL_KEY}  # the gang of two waits, the eval keeps its device
    busy = pool_of(tracks, 1, look=lambda _: Found(devices=(Device(name="d", out="a stranger"),)))
    written(tracks, History("r-3").declare().open().place().restore().commit(40).end("completed"))
    tick = tick_evals(replace(world, devices=busy))
    asked = [r.attempt_key for run in tick.done for r in run.requests]
    assert "r-3/heldout-loss@40/1" not in asked
    assert any(line.startswith("r-3/heldout-loss@40/1: ") for line in tick.waiting)


def test_an_eval_that_needs_no_device_waits_for_none_and_moves_nobody(
    tracks: Tracks, ledger: Ledger
) -> None:
    without = replace(declared().evals[0], needs_device=False)
    trained = History("r-1").declare(evals=(without,)).open().supervise().place().restore()
    written(tracks, trained.commit(40).end("completed", last_step=40))
    opened(tracks, "r-2")
    pool = pool_of(tracks, 1)
    world = world_of(tracks, ledger, devices=pool)
    assert shared(world).leased == {"r-2/a01"}
    [request] = [r for run in tick_evals(world).done for r in run.requests]
    assert (request.attempt_key, request.lease_seq) == (EVAL_KEY, None)
    assert held(pool) == {"r-2/a01": ("pretended:0",)}
    assert tracks.run("r-2").stops == ()


def placed_before_an_urgent_one(
    tracks: Tracks, ledger: Ledger, clock: FakeClock, gangs: FakeGangs
) -> tuple[History, World]:
    """Let a sweep have the only device, then an urgent run wait for it; return the sweep, and the
    world in which a new run is urgent."""
    clock.at = BEGIN + timedelta(minutes=30)
    sweep, pool = opened(tracks, "r-1"), pool_of(tracks, 1)
    world = world_of(
        *(tracks, ledger), devices=pool, policy=default_class("sweep"), launcher_of=lambda _: gangs
    )
    assert shared(world).leased == {"r-1/a01"}
    pool.confirm("r-1/a01", "dagster-1")
    written(tracks, sweep.supervise().place())
    opened(tracks, "r-2")
    return sweep, replace(world, policy=default_class("urgent"))


def default_class(name: str) -> RetryPolicy:
    scheduling = replace(DEFAULT_POLICY.scheduling, default_class=name)
    return replace(DEFAULT_POLICY, scheduling=scheduling)


def test_an_urgent_run_gets_devices_by_moving_one_that_saved_lately(
    tracks: Tracks, ledger: Ledger, clock: FakeClock
) -> None:
    sweep, urgent = placed_before_an_urgent_one(tracks, ledger, clock, FakeGangs())
    written(tracks, sweep.restore().commit(10))
    clock.at = sweep.at + timedelta(seconds=5)
    for _ in range(2):  # asked once, however many ticks see it
        found = shared(urgent)
    assert found.leased == frozenset()
    state = tracks.run("r-1")
    attempt = state.open_attempt
    assert attempt is not None
    (stop,) = state.stops
    assert (stop.body.by, stop.body.mode) == (SCHEDULER, "move")
    assert "r-2/a01" in stop.body.why
    assert state.is_moved(attempt)


def test_a_run_that_has_not_saved_is_asked_for_a_checkpoint_and_then_to_make_room(
    tracks: Tracks, ledger: Ledger, clock: FakeClock
) -> None:
    gangs = FakeGangs()
    sweep, urgent = placed_before_an_urgent_one(tracks, ledger, clock, gangs)
    shared(urgent)
    assert gangs.asked_to_save == []  # it has nothing to save yet
    written(tracks, sweep.restore())
    began = clock.at
    # Asked once; after a minute without a commit others may be asked instead, after ten it again.
    for at_s, asked, is_room in ((0, 1, True), (59, 1, True), (60, 1, False), (600, 2, True)):
        clock.at = began + timedelta(seconds=at_s)
        found = shared(urgent)
        assert found.problems == ()
        assert len(gangs.asked_to_save) == asked
        assert ("r-1/a01 saves and makes room" in found.waits[0].why) == is_room
    assert tracks.run("r-1").stops == ()
    sweep.at = clock.at
    written(tracks, sweep.commit(3, trigger="demand"))
    clock.at = sweep.at + timedelta(seconds=1)
    shared(urgent)
    assert [each.body.mode for each in tracks.run("r-1").stops] == ["move"]
    assert len(gangs.asked_to_save) == 2


def test_a_run_that_cannot_be_asked_for_a_checkpoint_is_named(
    tracks: Tracks, ledger: Ledger, clock: FakeClock
) -> None:
    gangs = FakeGangs()
    gangs.listens = False
    sweep, urgent = placed_before_an_urgent_one(tracks, ledger, clock, gangs)
    written(tracks, sweep.restore())
    [problem] = shared(urgent).problems
    assert problem.startswith("r-1/a01 could not be asked to save, to make room for r-2/a01: ")


def test_a_device_is_shared_only_by_what_was_measured_and_fits_with_a_margin(
    tracks: Tracks, ledger: Ledger
) -> None:
    """10 GiB held before are 12 GiB of need: 1.1 times as much, and 1 GiB for CUDA's context."""
    peak = MemoryPeak(reserved_bytes=10 * GIB)
    for run_id in ("r-1", "r-2"):
        history = History(run_id).declare(evals=(), promotion=None).open().place().restore()
        history.commit(20).open_eval(history.state.checkpoints[-1].ref)
        history.end_eval(history.state.evals[-1].opened, memory=peak)
        history.commit(40).open_eval(history.state.checkpoints[-1].ref)
        written(tracks, history.end("completed", last_step=40))
    retried = History("r-3").declare().open(compute=ComputeRequest()).place().restore().commit(10)
    written(tracks, retried.end("preempted", memory=peak).open(compute=ComputeRequest()))
    opened(tracks, "r-4")  # what it takes nobody knows
    one = Found(devices=(Device(name="GPU-1", memory_bytes=36 * GIB),))
    pool = pool_of(tracks, look=lambda leased: one)
    assert shared(world_of(tracks, ledger, devices=pool)).leased == {
        "r-1/heldout-loss@40/1",
        "r-2/heldout-loss@40/1",
        "r-3/a02",
    }
    state = pool.tracks.find_pool(HERE.pool)
    assert state is not None
    assert {lease.body.memory_bytes for lease in state.leases} == {12 * GIB}


@pytest.mark.parametrize(
    ("steps", "since_s", "left_s"),
    [
        (30, 0.0, 20.0),  # ten steps of 2 s are left of 40
        (30, 5.0, 15.0),
        (30, 50.0, 50.0),  # nothing came for longer than all of them take
        (40, 7.0, 7.0),  # it saves, or nobody closes it: not "any moment now"
    ],
)
def test_a_gang_is_expected_to_end_by_its_pace_since_its_newest_step(
    tracks: Tracks, ledger: Ledger, steps: int, since_s: float, left_s: float
) -> None:
    history = opened(tracks, "r-1")
    pool = pool_of(tracks)
    world = world_of(tracks, ledger, devices=pool)
    shared(world)
    written(tracks, history.supervise().place().restore())
    lines = [
        {"kind": "step", "t": format_time(history.at + timedelta(seconds=2 * step)), "step": step}
        | {"loss": 1.0, "metrics": {}, "step_s": 1.9, "data_s": 0.1}
        for step in range(1, steps + 1)
    ]
    key = f"{journal_prefix(AttemptRef('r-1', 1), history.launch_id, 0)}{0:012d}.jsonl"
    tracks.store.put(key, b"".join(canonical_json(line) + b"\n" for line in lines))
    now = history.at + timedelta(seconds=2 * steps + since_s)
    [line] = pool.view(partial(describe_running, pool, PastTimes(ledger), now))[0][:1]
    assert line.free_in_s == pytest.approx(left_s)


def test_a_run_without_steps_may_pass_by_what_runs_of_its_task_took(
    tracks: Tracks, ledger: Ledger, clock: FakeClock
) -> None:
    """Two devices: r-1 has one for 100 s more, r-2 wants both, r-3 takes 120 s and r-4 takes 60 s."""
    alone = {"compute": ComputeRequest(), "evals": (), "promotion": None}
    for steps, device_s in ((10, 100.0), (20, 120.0), (30, 60.0)):
        past = History(f"before-{steps}").declare(config={**CONFIG, "steps": steps}, **alone)
        past.open().place().restore().commit(9)
        written(tracks, past.end("completed", last_step=9, device_seconds=device_s).finish())
    opened(tracks, "r-1", config={**CONFIG, "steps": 10})
    pool = pool_of(tracks)
    world = world_of(tracks, ledger, devices=pool)
    assert shared(world).leased == {"r-1/a01"}
    pool.confirm("r-1/a01", "dagster-1")
    opened(tracks, "r-2", ranks=2)
    opened(tracks, "r-3", config={**CONFIG, "steps": 20})
    opened(tracks, "r-4", config={**CONFIG, "steps": 30})
    found = shared(world)
    assert found.leased == {"r-1/a01", "r-4/a01"}
    waits = {each.key: each.why for each in found.waits}
    assert "after r-1/a01, about" in waits["r-2/a01"]


@pytest.mark.parametrize(
    ("ends", "at_s", "left_s"),
    [
        ([("completed", 60.0)], 20.0, 40.0),
        ([("completed", 60.0), ("evaluator_error", 0.0)], 20.0, 40.0),
        ([("evaluator_error", 0.0)], 20.0, None),  # it says nothing of the next one
        ([("completed", 60.0)], 90.0, 90.0),  # outlived: as long again, not "any moment now"
    ],
)
def test_an_eval_is_expected_to_take_as_long_as_those_with_a_result_took(
    tracks: Tracks,
    ledger: Ledger,
    clock: FakeClock,
    ends: list[tuple[str, float]],
    at_s: float,
    left_s: float | None,
) -> None:
    history = History("r-1").declare(evals=(), promotion=None).open().place().restore()
    for step, (reason, took_s) in enumerate(ends, start=1):
        history.commit(step).open_eval(history.state.checkpoints[-1].ref)
        times = {
            "started_at": format_time(history.at),
            "finished_at": format_time(history.at + timedelta(seconds=took_s)),
        }
        history.end_eval(history.state.evals[-1].opened, reason=reason, **times)
    history.commit(40).open_eval(history.state.checkpoints[-1].ref)
    written(tracks, history)
    pool = pool_of(tracks)
    key = f"r-1/{history.state.evals[-1].opened.eval_id}/1"
    assert given(pool, key, "pretended:0")
    pool.confirm(key, "dagster-1")
    state = pool.tracks.find_pool(HERE.pool)
    assert state is not None
    holder = Holder(lease=state.leases[0], state=tracks.run("r-1"))
    now = clock() + timedelta(seconds=at_s)
    running = Running(
        demand=Demand(key=key, count=1), devices=("pretended:0",), began_s=clock().timestamp()
    )
    assert describe_running(pool, PastTimes(ledger), now, holder, running).left_s == pytest.approx(
        left_s
    )


def test_a_run_has_a_commit_once_it_saved_or_when_it_resumed_from_one(
    tracks: Tracks, ledger: Ledger, clock: FakeClock
) -> None:
    """By it the queue decides who may make room."""
    history = History("r-1").declare(evals=(), promotion=None).open().place().restore()
    fresh = committed_of(tracks, ledger, clock, history)
    history.commit(5)
    saved = committed_of(tracks, ledger, clock, history)
    assert (fresh, saved) == (None, history.state.checkpoints[-1].at.timestamp())
    history.end("preempted", last_step=5).open().place().restore()
    assert committed_of(tracks, ledger, clock, history) == clock().timestamp()


def committed_of(
    tracks: Tracks, ledger: Ledger, clock: FakeClock, history: History
) -> float | None:
    """Return when the newest attempt has its commit since, by what the run's track has now."""
    written(tracks, history)
    pool = pool_of(tracks)
    key = f"r-1/a{len(history.state.attempts):02d}"
    assert given(pool, key, "pretended:0")
    pool.confirm(key, "dagster-1")
    state = pool.tracks.find_pool(HERE.pool)
    assert state is not None
    lease = next(each for each in state.leases if each.body.key == key)
    running = Running(
        demand=Demand(key=key, count=1), devices=("pretended:0",), began_s=clock().timestamp()
    )
    holder = Holder(lease=lease, state=tracks.run("r-1"))
    return describe_running(pool, PastTimes(ledger), clock(), holder, running).committed_s


def test_who_has_which_device_is_shown_and_a_strangers_with_his_pid(
    tracks: Tracks, ledger: Ledger
) -> None:
    opened(tracks, "r-1")
    stranger = Device(name="GPU-2", out="pid 4711 (python) holds 9.8 GiB of it")
    there = Found(devices=(Device(name="GPU-1"), stranger, Device(name="GPU-3")))
    pool = pool_of(tracks, look=lambda leased: there)
    shared(world_of(tracks, ledger, devices=pool))
    lines, problems = pool.view()
    assert [(each.device, each.held_by) for each in lines] == [
        ("GPU-1", ("r-1/a01",)),
        ("GPU-2", ()),
        ("GPU-3", ()),
    ]
    assert lines[1].why == stranger.out
    assert problems == []
