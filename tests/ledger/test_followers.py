"""The one driver of followers, with a planted one: what is new of a track, and each record once."""

from __future__ import annotations

import pytest

from tests.fakes import FakeObjectStore
from tests.histories import DatasetHistory, History
from tests.messages import Messages
from tracks_dagster.ledger.effects.following import StoredCursors, follow
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.track.errors import StoreUnavailable


def write(tracks: Tracks, store: FakeObjectStore, *histories: History | DatasetHistory) -> None:
    for history in histories:
        history.write_to(store)
        tracks.project(history.name)


def test_it_has_what_is_new_of_every_track_and_each_record_once(
    tracks: Tracks, store: FakeObjectStore
) -> None:
    first, second = History("r-1").declare().open(), History("r-2").declare().open().end("hang")
    data = DatasetHistory().declare().commit()
    write(tracks, store, first, second, data)
    cursors, messages = StoredCursors(store), Messages()
    names = [each.name for each in (first, second, data)]
    assert [follow(tracks, cursors, messages, name) for name in names] == [2, 3, 2]
    assert [follow(tracks, cursors, messages, name) for name in names] == [0, 0, 0]
    write(tracks, store, first.end("preempted"))
    assert [follow(tracks, cursors, messages, name) for name in names] == [1, 0, 0]
    assert messages.sent == {"r-1/2": "preempted", "r-2/2": "hang"}
    assert messages.calls == [[0, 1], [0, 1, 2], [2]]


def test_a_process_that_comes_up_goes_on_where_the_last_one_was(
    tracks: Tracks, store: FakeObjectStore
) -> None:
    history = History("r-1").declare().open()
    write(tracks, store, history)
    follow(tracks, StoredCursors(store), Messages(), "runs/r-1")
    write(tracks, store, history.end("preempted"))
    messages = Messages()
    follow(tracks, StoredCursors(store), messages, "runs/r-1")
    assert messages.calls == [[2]]


class Dies(StoredCursors):
    """A process that is killed between what its follower did and its cursor."""

    def move(self, follower: str, track: str, seq: int) -> None:
        raise KeyboardInterrupt


def test_what_was_done_right_before_a_kill_is_done_again_and_says_the_same(
    tracks: Tracks, store: FakeObjectStore
) -> None:
    write(tracks, store, History("r-1").declare().open().end("preempted"))
    messages = Messages()
    with pytest.raises(KeyboardInterrupt):
        follow(tracks, Dies(store), messages, "runs/r-1")
    before = dict(messages.sent)
    follow(tracks, StoredCursors(store), messages, "runs/r-1")
    assert messages.calls == [[0, 1, 2], [0, 1, 2]]
    assert messages.sent == before == {"r-1/2": "preempted"}


def test_what_it_could_not_take_comes_again(tracks: Tracks, store: FakeObjectStore) -> None:
    write(tracks, store, History("r-1").declare().open().end("preempted"))
    cursors, messages = StoredCursors(store), Messages(away={"r-1"})
    with pytest.raises(StoreUnavailable, match="does not answer"):
        follow(tracks, cursors, messages, "runs/r-1")
    messages.away.clear()
    assert follow(tracks, cursors, messages, "runs/r-1") == 3
    assert messages.sent == {"r-1/2": "preempted"}
