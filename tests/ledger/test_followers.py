"""The one driver of followers, with a planted one: what is new, once, and each track in turn."""

from __future__ import annotations

import pytest

from tests.deciders import world_of
from tests.fakes import FakeObjectStore
from tests.histories import DatasetHistory, History
from tests.messages import Messages
from tracks_dagster.ledger.deciding import Cursors
from tracks_dagster.ledger.effects.following import StoredCursors, follow, follow_all
from tracks_dagster.ledger.effects.ticks import TimeSlice
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger


def write(tracks: Tracks, store: FakeObjectStore, *histories: History | DatasetHistory) -> None:
    for history in histories:
        history.write_to(store)
        tracks.project(history.name)


def test_it_has_what_is_new_of_every_track_and_each_record_once(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    first, second = History("r-1").declare().open(), History("r-2").declare().open().end("hang")
    write(tracks, store, first, second, DatasetHistory().declare().commit())
    world, cursors, messages = world_of(tracks, ledger), StoredCursors(store), Messages()
    assert sorted(follow_all(world, cursors, messages).done) == [2, 2, 3]
    assert follow_all(world, cursors, messages).done == ()
    write(tracks, store, first.end("preempted"))
    assert follow_all(world, cursors, messages).done == (1,)
    assert messages.sent == {"r-1/2": "preempted", "r-2/2": "hang"}
    assert sorted(messages.calls) == [[0, 1], [0, 1, 2], [2]]


def test_a_process_that_comes_up_goes_on_where_the_last_one_was(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    history = History("r-1").declare().open()
    write(tracks, store, history)
    follow_all(world_of(tracks, ledger), StoredCursors(store), Messages())
    write(tracks, store, history.end("preempted"))
    messages = Messages()
    follow_all(world_of(tracks, ledger), StoredCursors(store), messages)
    assert messages.calls == [[2]]


class Dies(StoredCursors):
    """A process that is killed between what its follower did and its cursor."""

    def move(self, follower: str, track: str, seq: int) -> None:
        raise KeyboardInterrupt


def test_what_was_done_right_before_a_kill_is_done_again_and_says_the_same(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    write(tracks, store, History("r-1").declare().open().end("preempted"))
    messages = Messages()
    with pytest.raises(KeyboardInterrupt):
        follow(tracks, Dies(store), messages, "runs/r-1")
    before = dict(messages.sent)
    follow(tracks, StoredCursors(store), messages, "runs/r-1")
    assert messages.calls == [[0, 1, 2], [0, 1, 2]]
    assert messages.sent == before == {"r-1/2": "preempted"}


def test_one_tracks_trouble_keeps_no_other_waiting_and_its_records_come_again(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    for run_id in ("r-1", "r-2"):
        write(tracks, store, History(run_id).declare().open().end("preempted"))
    cursors, messages = StoredCursors(store), Messages(away={"r-1"})
    tick = follow_all(world_of(tracks, ledger), cursors, messages)
    assert (list(messages.sent), tick.done) == (["r-2/2"], (3,))
    assert tick.problems == ("runs/r-1: the messenger does not answer",)
    messages.away.clear()
    assert follow_all(world_of(tracks, ledger), cursors, messages).done == (3,)
    assert sorted(messages.sent) == ["r-1/2", "r-2/2"]


def test_where_time_runs_out_the_next_tick_goes_on(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    for number in range(5):
        write(tracks, store, History(f"r-{number}").declare().open().end("preempted"))
    cursors: Cursors = StoredCursors(store)
    messages, now_s, after, counts = Messages(), 0.0, None, []

    def slow() -> float:
        nonlocal now_s
        now_s += 6.0  # two begin in the ten seconds of a part
        return now_s

    for _ in range(3):
        time_slice = TimeSlice(after=after, seconds=slow)
        tick = follow_all(world_of(tracks, ledger), cursors, messages, time_slice)
        after = tick.cut_at
        counts.append(len(tick.done))
    assert counts == [2, 2, 1]
    assert len(messages.sent) == 5
