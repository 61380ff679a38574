"""What the watcher does for the whole store has a few seconds of each tick, and goes on in the next."""

from __future__ import annotations

from datetime import timedelta
from itertools import count

from tests.bodies import BEGIN
from tests.fakes import FakeObjectStore, Fault
from tests.histories import DatasetHistory, History
from tracks_dagster.ledger.effects.projector import SCAN_EVERY, Projector
from tracks_dagster.ledger.effects.ticks import (
    UPKEEP_S_MAX,
    Mark,
    Tick,
    TickPart,
    read_cursor,
    run_parts,
)
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.retry.effects.due import REVISIT_EVERY, revisit
from tracks_dagster.track.records import format_time
from tracks_dagster.track.track import log_key

CALL_S = 0.5
COUNT = 20


class Slow(FakeObjectStore):
    """A store of which every read takes half a second of a clock of its own."""

    now_s = 0.0

    def get(self, key: str, bytes_max: int | None = None) -> bytes | None:
        self.now_s += CALL_S
        return super().get(key, bytes_max)


def write_tracks(store: FakeObjectStore) -> None:
    for number in range(COUNT):
        History(f"r-{number:02d}").declare().open().write_to(store)
    DatasetHistory().declare().commit().write_to(store)


def test_a_scan_of_many_tracks_is_cut_and_comes_to_its_end_over_ticks(ledger: Ledger) -> None:
    store = Slow()
    write_tracks(store)
    projector = Projector(store, ledger)
    part = TickPart(
        name="scan",
        work=lambda after: projector.scan_part(after, seconds=lambda: store.now_s),
        every=SCAN_EVERY,
    )
    cursor, ticks = None, 0
    while cursor is None or read_cursor(cursor)["scan"].done_at is None:
        began_s = store.now_s
        _, cursor = run_parts([part], cursor, BEGIN)
        assert store.now_s - began_s <= UPKEEP_S_MAX + 10 * CALL_S  # and the track it was in
        ticks += 1
        assert ticks <= COUNT + 1
    assert ticks > 5
    assert read_cursor(cursor)["scan"] == Mark(done_at=format_time(BEGIN))
    rows = ledger.query("select count(*) as n from training_runs")
    assert rows[0]["n"] == COUNT
    assert ledger.query("select count(*) as n from snapshots")[0]["n"] == 1


def test_a_run_whose_name_continues_anothers_is_not_left_out(ledger: Ledger) -> None:
    store = Slow()
    names = ["a", "a-0", "a-b", "ab", "b"]
    for name in names:
        History(name).declare().write_to(store)
    projector, after, clock = Projector(store, ledger), None, count(step=UPKEEP_S_MAX)
    for _ in names:
        after = projector.scan_part(after, seconds=lambda: next(clock)).cut_at
    assert {row["run_id"] for row in ledger.query("select run_id from training_runs")} == set(names)


def test_a_track_that_cannot_be_taken_in_does_not_keep_those_after_it(ledger: Ledger) -> None:
    store = Slow()
    write_tracks(store)
    store.put(log_key("runs/r-03", 0), b"no record")
    after, problems = None, []
    for _ in range(COUNT):
        done = Projector(store, ledger).scan_part(after, seconds=lambda: store.now_s)
        problems += done.problems
        after = done.cut_at
        if done.is_done:
            break
    assert len(problems) == 1
    assert problems[0].startswith("runs/r-03: ")
    assert ledger.query("select count(*) as n from training_runs")[0]["n"] == COUNT - 1


def test_a_store_that_cannot_be_reached_is_asked_again_where_the_scan_was(ledger: Ledger) -> None:
    store = FakeObjectStore()
    write_tracks(store)
    store.fail("get", 60, Fault.FAILS)
    first = Projector(store, ledger).scan_part(None, seconds=lambda: 0.0)
    assert (first.is_done, len(first.problems)) == (False, 1)
    assert first.cut_at is not None
    second = Projector(store, ledger).scan_part(first.cut_at, seconds=lambda: 0.0)
    assert second == Tick()
    assert ledger.query("select count(*) as n from training_runs")[0]["n"] == COUNT


def test_runs_that_wait_for_a_person_have_their_turn_over_several_visits(
    ledger: Ledger, tracks: Tracks, store: FakeObjectStore
) -> None:
    for number in range(COUNT):
        drained = History(f"r-{number:02d}").declare().open().stop("drain").end("user_cancelled")
        drained.write_to(store)
    Projector(store, ledger).scan()
    for number in range(COUNT):  # and each was retried by a command that died before it projected
        history = History(f"r-{number:02d}").declare().open().stop("drain").end("user_cancelled")
        history.open(cause="manual_retry").write_to(store)
    now_s = 0.0

    def slow() -> float:
        nonlocal now_s
        now_s += 1.0
        return now_s

    part = TickPart(
        name="revisit",
        work=lambda after: revisit(tracks, ledger, after=after, seconds=slow),
        every=REVISIT_EVERY,
    )
    cursor, now = None, BEGIN
    for _ in range(COUNT):
        _, cursor = run_parts([part], cursor, now)
        soon, cursor = run_parts([part], cursor, now + timedelta(minutes=4))
        assert soon == {"revisit": Tick()}
        now += timedelta(minutes=5)
        if read_cursor(cursor)["revisit"].after is None:
            break
    waiting = ledger.query("select count(*) as n from training_attempts where attempt_id = 2")
    assert waiting[0]["n"] == COUNT
