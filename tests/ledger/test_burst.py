"""Two hundred attempts that ended at once are worked off in three ticks of each sensor, in time."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from tests.deciders import ticked, world_of
from tests.fakes import FakeClock, FakeObjectStore, SequentialUids
from tests.histories import History
from tracks_dagster.attempts.effects.watch import survey
from tracks_dagster.attempts.launch import plan_launches
from tracks_dagster.ledger.effects.deciding import Settled
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.effects.ticks import AT_ONCE_MAX, PART_S_MAX, Tick, TimeSlice
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.stores import open_store
from tracks_dagster.track import names
from tracks_dagster.track.ports import ObjectStore

COUNT = 200
CALL_S = 0.03
FEW = 30  # where the number is not the point
TICKS = 3
TICK_CPU_S_MAX = 30.0  # Dagster ends a tick after 60 s; 40 decisions take 0.8 s of CPU time
ENDS = ("preempted", "gpu_oom", "nan_loss", "node_failure", "unknown")
DECIDERS = (
    names.RETRY_PREEMPTED,
    names.RETRY_OOM,
    names.RETRY_NUMERICS,
    names.RETRY_INFRASTRUCTURE,
    names.WATCH_ATTEMPTS,
)
HOUR_S = 3600.0


def burst(
    store: ObjectStore,
    ledger: Ledger,
    clock: FakeClock,
    *,
    count: int,
    ends: Sequence[str] = ENDS,
) -> Tracks:
    """Store runs whose first attempts all ended within a minute; the clock stands at the last end."""
    config = {"steps": 40, "seed": 7, "micro_batch": 4, "accumulation": 6, "global_batch": 48}
    for number in range(count):
        history = History(f"r-{number:03d}").declare(config=config).open()
        history.supervise(f"dagster-{number}").place().restore().commit(10)
        reason = ends[number % len(ends)]
        onset = {"onset_step": 12} if reason == "nan_loss" else {}
        history.end(reason, last_step=12, **onset).write_to(store)
        clock.at = history.at
    projector = Projector(store, ledger)
    projector.scan()
    return Tracks(store, now=clock, new_uid=SequentialUids(), project=projector.project)


def tick_all(tracks: Tracks, ledger: Ledger) -> list[Tick[Settled]]:
    """Let every sensor that decides tick once, each within its time."""
    ticks = []
    for sensor in DECIDERS:
        began_s = time.process_time()
        tick = ticked(tracks, ledger, sensor=sensor, seconds=lambda: 0.0)
        took_s = time.process_time() - began_s
        print(f"{sensor}: {len(tick.decided)} decided in {took_s:.2f} s of CPU time")
        assert took_s < TICK_CPU_S_MAX
        ticks.append(tick)
    return ticks


def opened_count(ledger: Ledger) -> int:
    rows = ledger.query("select count(*) as n from training_attempts where attempt_id = 2")
    return int(rows[0]["n"])


@pytest.mark.parametrize(
    ("where", "count"), [("memory", FEW), pytest.param("folder", COUNT, marks=pytest.mark.full)]
)
def test_what_ended_while_no_daemon_ran_is_decided_and_asked_for_in_three_ticks(
    where: str, count: int, ledger: Ledger, clock: FakeClock, tmp_path: Path
) -> None:
    store = FakeObjectStore() if where == "memory" else open_store(str(tmp_path / "store"))
    tracks = burst(store, ledger, clock, count=count)
    clock.advance(HOUR_S)
    for _ in range(TICKS):
        ticks = tick_all(tracks, ledger)
        assert not [problem for tick in ticks for problem in tick.problems]
    assert opened_count(ledger) == count
    found = survey(world_of(tracks, ledger), TimeSlice(seconds=lambda: 0.0))
    assert len(plan_launches(found.done, clock()).requests) == count


class Distant(FakeObjectStore):
    """A store each of whose calls takes 30 ms, on a clock of its own that counts what the threads of a
    tick wait for side by side."""

    now_s = 0.0
    side_by_side = 1

    def get(self, key: str, bytes_max: int | None = None) -> bytes | None:
        self.now_s += CALL_S / self.side_by_side
        return super().get(key, bytes_max)

    def create(self, key: str, data: bytes | memoryview) -> bool:
        self.now_s += CALL_S / self.side_by_side
        return super().create(key, data)


def test_a_burst_of_one_reason_takes_three_ticks_at_30_ms_a_call_for_a_daemon_that_just_started(
    ledger: Ledger, clock: FakeClock
) -> None:
    store = Distant()
    burst(store, ledger, clock, count=COUNT, ends=("preempted",))
    clock.advance(HOUR_S)
    projector = Projector(store, ledger)  # remembers nothing: every track is read again
    tracks = Tracks(store, now=clock, new_uid=SequentialUids(), project=projector.project)
    store.side_by_side = AT_ONCE_MAX
    after, ticks, calls = None, 0, len(store.calls)
    for _ in range(COUNT):
        began_s = store.now_s
        tick = ticked(
            tracks,
            ledger,
            sensor=names.RETRY_PREEMPTED,
            after=after,
            seconds=lambda: store.now_s,
        )
        assert not tick.problems
        assert store.now_s - began_s < PART_S_MAX + 2.0  # those that were begun come to their end
        ticks, after = ticks + 1, tick.cut_at
        if after is None:
            break
    print(f"{ticks} ticks, {(len(store.calls) - calls) / COUNT:.1f} calls a run")
    assert opened_count(ledger) == COUNT
    assert ticks <= TICKS


def test_what_ends_in_one_storm_is_paused_with_an_alert_each_and_worked_off_after_it(
    store: FakeObjectStore, ledger: Ledger, clock: FakeClock
) -> None:
    tracks = burst(store, ledger, clock, count=FEW)
    tick_all(tracks, ledger)
    assert opened_count(ledger) == 0
    again = tick_all(tracks, ledger)
    assert any(t.waiting for t in again)
    assert all("retries into pool local/cpu pause" in w for t in again for w in t.waiting)
    rows = ledger.query("select count(*) as n from notes where author = 'pool_storm'")
    assert rows[0]["n"] == FEW
    clock.advance(DEFAULT_POLICY.storm.pause_s)
    for _ in range(TICKS):
        tick_all(tracks, ledger)
    assert opened_count(ledger) == FEW


def test_where_time_runs_out_the_next_tick_goes_on_and_nothing_is_done_twice(
    store: FakeObjectStore, ledger: Ledger, clock: FakeClock
) -> None:
    tracks = burst(store, ledger, clock, count=FEW)
    clock.advance(HOUR_S)
    now_s = 0.0

    def slow() -> float:
        nonlocal now_s
        now_s += 4.0  # every run takes four seconds: three begin within a part of a tick
        return now_s

    after, ticks = None, 0
    for _ in range(COUNT):
        tick = ticked(
            tracks,
            ledger,
            sensor=names.RETRY_PREEMPTED,
            after=after,
            seconds=slow,
        )
        ticks += 1
        assert len(tick.decided) <= 3
        after = tick.cut_at
        if after is None:
            break
    preempted = FEW // len(ENDS)
    assert (opened_count(ledger), ticks) == (preempted, math.ceil(preempted / 3))


def test_a_run_whose_clock_is_ahead_holds_up_nobody(
    store: FakeObjectStore, ledger: Ledger, clock: FakeClock
) -> None:
    ahead = History("ahead", begin=clock.at + timedelta(days=400)).declare().open().place()
    ahead.end("preempted").write_to(store)
    History("r-1", begin=clock.at).declare().open().place().end("preempted").write_to(store)
    projector = Projector(store, ledger)
    projector.scan()
    tracks = Tracks(store, now=clock, new_uid=SequentialUids(), project=projector.project)
    clock.advance(60)
    tick = ticked(tracks, ledger, sensor=names.RETRY_PREEMPTED)
    assert [line.split(":")[0] for line in tick.decided] == ["r-1", "ahead"]
