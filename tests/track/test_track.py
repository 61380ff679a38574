"""A track over an object store that loses replies and fails: read, note, decide."""

from __future__ import annotations

import itertools
import threading

import pytest

from tests.fakes import FakeClock, FakeObjectStore, Fault, SequentialUids
from tracks_dagster.track.errors import Contended, RecordTooLarge, StoreUnavailable, TrackBroken
from tracks_dagster.track.names import dataset_track, run_track
from tracks_dagster.track.records import Draft, Kind, Record, parse, seal, sha256_hex
from tracks_dagster.track.track import (
    BACKOFF_S_MAX,
    BACKOFF_S_MIN,
    DECISIONS_MAX,
    TRIES_AT_ONE_SEQ_MAX,
    Track,
    backoff_s,
    log_key,
    read_records,
)

NAME = "runs/r-1"
LOST = [Fault.LOST_BEFORE, Fault.LOST_AFTER, Fault.LOST_UNTIL_LATER]


def note(uid: str, text: str = "") -> Draft:
    return Draft(uid=uid, kind=Kind.NOTE, body={"by": "test", "text": text})


def uids(store: FakeObjectStore) -> list[str]:
    return [record.uid for record in read_records(store, NAME)]


@pytest.fixture
def pauses() -> list[float]:
    """The pauses in seconds that `track` asked for; none of them is waited for."""
    return []


@pytest.fixture
def track(store: FakeObjectStore, clock: FakeClock, pauses: list[float]) -> Track:
    return Track(store, NAME, now=clock, sleep=pauses.append)


@pytest.fixture
def other(store: FakeObjectStore, clock: FakeClock) -> Track:
    """The same track, as another process has it."""
    return Track(store, NAME, now=clock)


def test_names_and_keys_are_those_of_the_layout() -> None:
    assert run_track("r-1") == "runs/r-1"
    assert dataset_track("aws-docs") == "datasets/aws-docs"
    assert log_key("runs/r-1", 7) == "runs/r-1/log/000000000007.json"


def test_an_empty_track_has_no_records(track: Track) -> None:
    assert track.refresh() == []


def test_what_is_appended_is_numbered_and_chained(
    track: Track, store: FakeObjectStore, clock: FakeClock
) -> None:
    appended = [track.note(note(uid)) for uid in "abc"]
    assert [record.seq for record in appended] == [0, 1, 2]
    assert [record.prev_sha256 for record in appended] == [
        None,
        sha256_hex(store.objects[log_key(NAME, 0)]),
        sha256_hex(store.objects[log_key(NAME, 1)]),
    ]
    assert {record.at for record in appended} == {clock.at}
    assert list(read_records(store, NAME)) == track.refresh() == appended


def test_a_track_once_read_asks_only_for_what_is_new(
    track: Track, other: Track, store: FakeObjectStore
) -> None:
    for uid in "abc":
        other.note(note(uid))
    track.refresh()
    other.note(note("d"))
    store.calls.clear()
    assert [record.uid for record in track.refresh()] == list("abcd")
    assert store.calls == [("get", log_key(NAME, 3)), ("get", log_key(NAME, 4))]


# --- notes ---


@pytest.mark.parametrize("fault", LOST)
def test_a_note_whose_reply_is_lost_lands_once(
    track: Track, store: FakeObjectStore, fault: Fault
) -> None:
    track.note(note("a"))
    store.fail("create", 1, fault)
    record = track.note(note("b"))
    assert (record.seq, record.uid) == (1, "b")
    assert uids(store) == ["a", "b"]


def test_a_repeated_note_is_found_again(track: Track, other: Track, store: FakeObjectStore) -> None:
    first = track.note(note("a"))
    other.note(note("b"))
    assert track.note(note("a")) == first
    assert other.note(note("a")) == first
    assert uids(store) == ["a", "b"]


def test_a_note_that_loses_its_place_goes_on_to_the_next(
    track: Track, other: Track, store: FakeObjectStore
) -> None:
    create, rivals = store.create, iter("xy")

    def create_after_a_rival(key: str, data: bytes) -> bool:
        rival = next(rivals, None)
        if rival is not None:
            other.note(note(rival))
        return create(key, data)

    store.create = create_after_a_rival  # type: ignore[method-assign]
    assert track.note(note("a")).uid == "a"
    assert sorted(uids(store)) == ["a", "x", "y"]


def test_a_note_given_up_for_lost_replies_may_be_repeated_and_stands_once(
    track: Track, store: FakeObjectStore
) -> None:
    for number in range(1, TRIES_AT_ONE_SEQ_MAX):
        store.fail("create", number, Fault.LOST_BEFORE)
    store.fail("create", TRIES_AT_ONE_SEQ_MAX, Fault.LOST_UNTIL_LATER)
    with pytest.raises(StoreUnavailable, match="the same append, repeated, finds it"):
        track.note(note("a"))
    assert track.note(note("a")).seq == 0
    assert uids(store) == ["a"]


def test_creations_at_one_seq_are_repeated_with_growing_pauses_and_read_back_at_once(
    track: Track, store: FakeObjectStore, pauses: list[float]
) -> None:
    for number in range(1, 6):
        store.fail("create", number, Fault.LOST_BEFORE)
    track.note(note("a"))
    assert pauses == [backoff_s("a", tries) for tries in range(1, 6)]
    looked = ["get", "list", "get"]
    assert [method for method, _ in store.calls] == [*looked, *["create", "get"] * 5, "create"]


def test_no_pause_follows_a_lost_place_or_a_lost_reply_that_reading_back_settles(
    track: Track, other: Track, store: FakeObjectStore, pauses: list[float]
) -> None:
    store.fail("create", 1, Fault.LOST_AFTER)
    track.note(note("a"))
    for uid in "bcd":
        other.note(note(uid))
    track.note(note("e"))
    assert uids(store) == list("abcde")
    assert pauses == []


def test_a_pause_doubles_up_to_its_bound_and_differs_from_another_writers() -> None:
    # tries:       1    2    3    4    5    6    7
    # at most, s:  0.1  0.2  0.4  0.8  1.6  2.0  2.0   (7.1 in all), and at least half of each
    most = [min(BACKOFF_S_MIN * 2**doubled, BACKOFF_S_MAX) for doubled in range(7)]
    assert sum(most) == pytest.approx(7.1)
    for uid in ("a", "b", "0" * 32):
        found = [backoff_s(uid, tries) for tries in range(1, TRIES_AT_ONE_SEQ_MAX)]
        assert all(full / 2 <= s <= full for s, full in zip(found, most, strict=True))
    assert backoff_s("a", 1) != backoff_s("b", 1)


def test_a_store_that_fails_is_reported_as_it_is(track: Track, store: FakeObjectStore) -> None:
    for method in ("get", "create"):
        store.fail(method, 1, Fault.FAILS)
        with pytest.raises(StoreUnavailable, match=f"The {method} of"):
            track.note(note("a"))
    assert uids(store) == []


def test_a_store_that_contradicts_itself_does_not_hold_an_append_for_ever(
    track: Track, store: FakeObjectStore
) -> None:
    store.create = lambda key, data: False  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable, match="Cannot append to runs/r-1"):
        track.note(note("a"))
    with pytest.raises(StoreUnavailable, match="Cannot append to runs/r-1"):
        track.decide(lambda records: note("a"))
    assert len(store.calls) < 100


def test_what_is_too_large_is_refused_before_anything_is_written(
    track: Track, store: FakeObjectStore
) -> None:
    with pytest.raises(RecordTooLarge, match="store what is large as an object"):
        track.note(note("a", "x" * 20_000))
    with pytest.raises(RecordTooLarge):
        track.decide(lambda records: note("a", "x" * 20_000))
    assert store.objects == {}


# --- decisions ---


def test_a_decision_stands_right_after_what_it_was_made_on(
    track: Track, store: FakeObjectStore
) -> None:
    track.note(note("a"))
    seen: list[list[str]] = []

    def choose(records: list[Record]) -> Draft:
        seen.append([record.uid for record in records])
        return note("decided")

    record = track.decide(choose)
    assert record is not None
    assert record.seq == 1
    assert seen == [["a"]]
    assert uids(store) == ["a", "decided"]


def test_nothing_to_decide_writes_nothing(track: Track, store: FakeObjectStore) -> None:
    assert track.decide(lambda records: None) is None
    assert store.objects == {}


def test_a_decision_that_lost_its_place_is_made_again_on_what_stands_then(
    track: Track, other: Track, store: FakeObjectStore
) -> None:
    seen: list[list[str]] = []

    def choose(records: list[Record]) -> Draft | None:
        seen.append([record.uid for record in records])
        if len(seen) == 1:
            other.note(note("rival"))
        return note(f"decided {len(seen)}")

    record = track.decide(choose)
    assert record is not None
    assert record.uid == "decided 2"
    assert seen == [[], ["rival"]]
    assert uids(store) == ["rival", "decided 2"]


def test_of_two_who_decide_the_same_one_finds_nothing_left_to_do(
    track: Track, other: Track, store: FakeObjectStore
) -> None:
    def unless_done(uid: str, records: list[Record]) -> Draft | None:
        return None if records else note(uid)

    def rival_first(records: list[Record]) -> Draft | None:
        draft = unless_done("slow", records)
        other.decide(lambda theirs: unless_done("quick", theirs))
        return draft

    assert track.decide(rival_first) is None
    assert uids(store) == ["quick"]


@pytest.mark.parametrize("fault", LOST)
def test_a_decision_whose_reply_is_lost_stands_once(
    track: Track, store: FakeObjectStore, fault: Fault
) -> None:
    store.fail("create", 1, fault)
    numbers = itertools.count()
    record = track.decide(lambda records: note(f"decided {next(numbers)}"))
    assert record is not None
    assert record.uid == "decided 0"
    assert uids(store) == ["decided 0"]


def test_a_lost_reply_to_a_decision_whose_place_was_taken_is_a_lost_place(
    track: Track, other: Track, store: FakeObjectStore
) -> None:
    def choose(records: list[Record]) -> Draft | None:
        if records:
            return None
        other.note(note("rival"))
        store.fail("create", 1, Fault.LOST_BEFORE)
        return note("decided")

    assert track.decide(choose) is None
    assert uids(store) == ["rival"]


def test_a_decision_that_never_gets_its_place_gives_up(
    track: Track, other: Track, store: FakeObjectStore, new_uid: SequentialUids
) -> None:
    def choose(records: list[Record]) -> Draft:
        other.note(note(new_uid()))
        return note("decided")

    with pytest.raises(Contended, match=f"lost its place {DECISIONS_MAX} times in a row"):
        track.decide(choose)
    assert len(uids(store)) == DECISIONS_MAX


def test_eight_threads_that_decide_at_once_open_each_number_once(
    store: FakeObjectStore, clock: FakeClock
) -> None:
    """Each appends the next number of 1..20 until none is left."""
    barrier = threading.Barrier(8)
    errors: list[BaseException] = []

    def decide_all(thread: int) -> None:
        track = Track(store, NAME, now=clock)
        tries = itertools.count()

        def choose(records: list[Record]) -> Draft | None:
            count = len(records)
            return None if count == 20 else note(f"{thread}-{next(tries)}", str(count))

        try:
            barrier.wait(timeout=60)
            while track.decide(choose) is not None:
                pass
        except BaseException as error:  # noqa: BLE001 - raised again below, in the test's thread
            errors.append(error)

    threads = [threading.Thread(target=decide_all, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert [r.body["text"] for r in read_records(store, NAME)] == [str(n) for n in range(20)]


# --- broken chains ---


def edited(store: FakeObjectStore, seq: int) -> None:
    """Let somebody edit a stored record."""
    record = parse(store.objects[log_key(NAME, seq)], seq=seq)
    store.objects[log_key(NAME, seq)] = seal(
        note(record.uid, "edited"), seq=seq, at=record.at, prev_sha256=record.prev_sha256
    )


def test_an_edited_record_breaks_the_chain_at_the_next_one(
    track: Track, other: Track, store: FakeObjectStore
) -> None:
    for uid in "abc":
        other.note(note(uid))
    edited(store, 1)
    with pytest.raises(TrackBroken, match="The chain of runs/r-1 breaks at record 2"):
        track.refresh()
    assert [record.uid for record in track.known] == ["a", "b"]
    reader = read_records(store, NAME)
    assert [next(reader).uid, next(reader).uid] == ["a", "b"]
    with pytest.raises(TrackBroken, match="edited after it was written"):
        next(reader)


def test_a_broken_track_names_itself_and_what_to_ask_next(
    track: Track, other: Track, store: FakeObjectStore
) -> None:
    for uid in "abc":
        other.note(note(uid))
    edited(store, 1)
    asks = r"`tracks explain r-1` shows them; `tracks fsck` shows what is wrong"
    with pytest.raises(TrackBroken, match=asks):
        track.refresh()
    store.objects[log_key(NAME, 1)] = b"{"
    with pytest.raises(TrackBroken, match=rf"Record 1 cannot be read.*{NAME}.*{asks}"):
        list(read_records(store, NAME))


def test_nothing_is_appended_to_a_broken_track(
    track: Track, other: Track, store: FakeObjectStore
) -> None:
    for uid in "abc":
        other.note(note(uid))
    store.objects[log_key(NAME, 2)] = b"not a record"
    count = len(store.objects)
    with pytest.raises(TrackBroken, match="Record 2 cannot be read"):
        track.note(note("d"))
    with pytest.raises(TrackBroken, match="Record 2 cannot be read"):
        track.decide(lambda records: note("d"))
    assert len(store.objects) == count


def test_a_walk_notices_that_the_record_it_meets_does_not_follow_the_last_one(
    track: Track, other: Track, store: FakeObjectStore, clock: FakeClock
) -> None:
    track.note(note("a"))
    stray = seal(note("stray"), seq=1, at=clock.at, prev_sha256="nothing")
    create = store.create

    def create_after_a_stray(key: str, data: bytes) -> bool:
        store.objects.setdefault(log_key(NAME, 1), stray)
        return create(key, data)

    store.create = create_after_a_stray  # type: ignore[method-assign]
    with pytest.raises(TrackBroken, match="breaks at record 1"):
        track.note(note("b"))
    assert len(store.objects) == 2
