"""A track that lost a record: nothing may be appended into the gap, and nothing else is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from tests.fakes import FakeClock, FakeObjectStore
from tracks_dagster.track.errors import TrackBroken
from tracks_dagster.track.records import Draft, Kind
from tracks_dagster.track.track import Track, log_key

NAME = "runs/r-1"
COUNT = 5


def note(uid: str) -> Draft:
    return Draft(uid=uid, kind=Kind.NOTE, body={"by": "test", "text": uid})


@pytest.fixture
def store() -> FakeObjectStore:
    store = FakeObjectStore()
    track = Track(store, NAME, now=FakeClock())
    for index in range(COUNT):
        track.note(note(f"n{index}"))
    return store


@pytest.fixture
def track(store: FakeObjectStore) -> Track:
    """The track as a process has it that has read nothing yet."""
    return Track(store, NAME, now=FakeClock())


def _note(track: Track) -> object:
    return track.note(note("new"))


def _decide(track: Track) -> object:
    return track.decide(lambda records: note("new"))


def _append_after_the_last_that_can_be_read(track: Track) -> object:
    return track.append_after(track.refresh()[-1], note("new"))


@pytest.mark.parametrize(
    "append", [_note, _decide, _append_after_the_last_that_can_be_read], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("lost", [1, COUNT - 2])
def test_nothing_is_appended_into_the_gap_that_a_lost_record_left(
    store: FakeObjectStore, track: Track, append: Callable[[Track], object], lost: int
) -> None:
    store.delete(log_key(NAME, lost))
    with pytest.raises(TrackBroken, match=f"has lost its record {lost}: .*Nothing was written"):
        append(track)
    assert store.get(log_key(NAME, lost)) is None


def test_a_track_that_lost_its_first_record_is_not_begun_again(
    store: FakeObjectStore, track: Track
) -> None:
    store.delete(log_key(NAME, 0))
    with pytest.raises(TrackBroken, match="has lost its record 0"):
        _decide(track)


def test_a_track_that_is_read_from_a_record_on_is_continued_behind_it_alone(
    store: FakeObjectStore,
) -> None:
    track = Track(store, NAME, now=FakeClock(), first=2)
    assert [record.seq for record in track.refresh()] == [2, 3, 4]
    record = _decide(track)
    assert [each.seq for each in track.refresh()] == [2, 3, 4, 5]
    assert Track(store, NAME, now=FakeClock()).refresh()[-1] == record  # the chain holds
    store.delete(log_key(NAME, 4))
    for first in (3, 4, 9):
        with pytest.raises(TrackBroken, match="has lost its record"):
            _decide(Track(store, NAME, now=FakeClock(), first=first))


def test_what_others_append_between_the_reading_and_the_list_is_not_a_gap(
    store: FakeObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = Track(store, NAME, now=FakeClock())
    late.refresh()
    other = Track(store, NAME, now=FakeClock())
    listed = store.list

    def list_after_the_others(prefix: str) -> Iterator[str]:
        monkeypatch.setattr(store, "list", listed)
        for index in range(2):
            other.note(note(f"other{index}"))
        return listed(prefix)

    monkeypatch.setattr(store, "list", list_after_the_others)
    assert late.append_after(late.known[-1], note("late")) is None  # its place was taken
    assert _decide(late) is not None


def test_a_gap_behind_what_others_appended_meanwhile_is_seen(store: FakeObjectStore) -> None:
    late = Track(store, NAME, now=FakeClock())
    late.refresh()
    other = Track(store, NAME, now=FakeClock())
    for index in range(4):
        other.note(note(f"other{index}"))
    lost = COUNT + 2
    store.delete(log_key(NAME, lost))
    for append in (lambda: late.append_after(late.known[COUNT - 1], note("late")), late.refresh):
        with suppress(TrackBroken):
            append()
    with pytest.raises(TrackBroken, match=f"has lost its record {lost}: .*Nothing was written"):
        _decide(late)
    assert store.get(log_key(NAME, lost)) is None


@pytest.mark.parametrize(
    "name", ["000000000009.json.bak", "README.md", "copy-of-000000000009.json"]
)
def test_what_is_not_a_record_of_the_log_is_not_a_sign_of_a_gap(
    store: FakeObjectStore, track: Track, name: str
) -> None:
    store.put(f"{NAME}/log/{name}", b"{}")
    assert _decide(track) is not None


def test_a_process_asks_once(store: FakeObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    track = Track(store, NAME, now=FakeClock())
    listed: list[str] = []
    list_keys = store.list

    def counted(prefix: str) -> Iterator[str]:
        listed.append(prefix)
        return list_keys(prefix)

    monkeypatch.setattr(store, "list", counted)
    assert _decide(track) is not None
    track.note(note("newer"))
    assert listed == [f"{NAME}/log/"]
