"""A long track is read ahead where its store is far, and ends as one that is read one by one."""

from __future__ import annotations

import threading
import time

import pytest

from tests.fakes import FakeClock, FakeObjectStore
from tracks_dagster.track.errors import StoreUnavailable, TrackBroken
from tracks_dagster.track.records import Draft, Kind, Record, seal, sha256_hex
from tracks_dagster.track.track import AHEAD, AHEAD_AFTER, log_key, read_records

NAME = "runs/r-1"


def note(uid: str) -> Draft:
    return Draft(uid=uid, kind=Kind.NOTE, body={"by": "test", "text": ""})


class SlowStore(FakeObjectStore):
    """Takes a moment for each get, and counts how many are under way."""

    most = under_way = 0

    def get(self, key: str, bytes_max: int | None = None) -> bytes | None:
        with self._lock:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
        time.sleep(0.002)
        with self._lock:
            self.under_way -= 1
        return super().get(key, bytes_max)


LONG = 2 * AHEAD_AFTER
LATE = AHEAD_AFTER + AHEAD + 5  # a record that is asked for ahead of its turn


def long_track(store: FakeObjectStore, clock: FakeClock, count: int = LONG) -> FakeObjectStore:
    before = None
    for seq in range(count):
        data = seal(note(f"{seq:032x}"), seq=seq, at=clock.at, prev_sha256=before)
        store.objects[log_key(NAME, seq)] = data
        before = sha256_hex(data)
    return store


@pytest.mark.parametrize(
    ("url", "count", "most"),
    [
        ("s3://far/away", LONG, AHEAD),
        ("s3://far/away", AHEAD_AFTER - 1, 1),  # as nearly all: nothing is asked for in vain
        ("/a/folder", LONG, 1),  # threads would cost more than they bring
    ],
)
def test_a_long_track_in_a_far_store_is_read_ahead(
    url: str, count: int, most: int, clock: FakeClock
) -> None:
    store = SlowStore(url)
    read = list(read_records(long_track(store, clock, count), NAME))
    assert [record.seq for record in read] == list(range(count))
    assert (store.most > 1) == (most > 1)
    assert store.most <= most
    assert len(store.calls) <= count + most
    assert list(read_records(store, NAME, after=read[3])) == read[4:]


def test_who_stops_reading_ahead_leaves_no_thread(clock: FakeClock) -> None:
    store = long_track(SlowStore("s3://far/away"), clock)
    reader = read_records(store, NAME)
    assert [next(reader).seq for _ in range(LATE)] == list(range(LATE))
    reader.close()  # type: ignore[attr-defined]
    assert store.under_way == 0
    assert not [each for each in threading.enumerate() if each.name.startswith("records")]


def test_what_ends_a_reading_ends_one_ahead_at_the_same_record(clock: FakeClock) -> None:
    def lost(store: FakeObjectStore) -> None:
        del store.objects[log_key(NAME, LATE)]

    def broken(store: FakeObjectStore) -> None:
        store.objects[log_key(NAME, LATE)] = b"not a record"

    def edited(store: FakeObjectStore) -> None:
        data = seal(note("edited"), seq=LATE, at=clock.at, prev_sha256="of another")
        store.objects[log_key(NAME, LATE)] = data

    def away(store: FakeObjectStore) -> None:
        get, key = store.get, log_key(NAME, LATE)

        def fails_there(asked: str, bytes_max: int | None = None) -> bytes | None:
            if asked == key:
                raise StoreUnavailable("away")
            return get(asked, bytes_max)

        store.get = fails_there  # type: ignore[method-assign]

    for happens in (lost, broken, edited, away):
        ends = []
        for url in ("s3://far/away", "/a/folder"):
            store = long_track(FakeObjectStore(url), clock)
            happens(store)
            found: list[Record] = []
            try:
                for record in read_records(store, NAME):
                    found.append(record)
                end = "the end"
            except (TrackBroken, StoreUnavailable) as error:
                end = f"{type(error).__name__} {error}".replace(url, "")
            ends.append((len(found), end))
        assert ends[0] == ends[1], happens.__name__
        assert ends[0][0] == LATE, happens.__name__
