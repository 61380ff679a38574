"""A trainer's end of the track: facts in the name of one launch, fenced for good."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Thread

import pytest

from tests.fakes import FakeClock, FakeObjectStore, Fault
from tracks_dagster.track.append import Authority
from tracks_dagster.track.errors import Contended, Fenced, StoreUnavailable, TrackBroken
from tracks_dagster.track.records import Draft, Json, Kind, Record
from tracks_dagster.track.track import DECISIONS_MAX, Track, log_key, read_records
from tracks_dagster.track.trainer_track import TrainerTrack

NAME = "runs/r-1"
OPENED_SEQ = 1


def draft(uid: str, kind: Kind, attempt_id: int | None = None, **body: Json) -> Draft:
    return Draft(uid=uid, kind=kind, body=body, attempt_id=attempt_id)


def placed(launch_id: str = "a", attempt_id: int = 1) -> Draft:
    uid = f"placed {launch_id}"
    return draft(uid, Kind.ATTEMPT_PLACED, attempt_id, launch_id=launch_id)


def commit(step: int, launch_id: str = "a") -> Draft:
    uid = f"commit {launch_id} {step}"
    return draft(uid, Kind.CHECKPOINT_COMMITTED, 1, launch_id=launch_id, step=step)


def quarantine(manifest: str, uid: str = "quarantine") -> Draft:
    return draft(uid, Kind.CHECKPOINT_QUARANTINED, manifest_sha256=manifest)


ENDED = draft("ended", Kind.ATTEMPT_ENDED, 1)
OPENED_NEXT = draft("opened 2", Kind.ATTEMPT_OPENED, 2)


@pytest.fixture
def outside(store: FakeObjectStore, clock: FakeClock) -> Track:
    """The track as a sensor has it: declared, attempt 1 opened."""
    track = Track(store, NAME, now=clock)
    track.note(draft("declared", Kind.RUN_DECLARED))
    track.note(draft("opened 1", Kind.ATTEMPT_OPENED, 1))
    return track


def trainer_of(store: FakeObjectStore, launch_id: str = "a", seq: int = 1) -> TrainerTrack:
    authority = Authority(attempt_id=1, launch_id=launch_id)
    return TrainerTrack(
        store, NAME, opened_seq=seq, authority=authority, now=FakeClock(), sleep=no_sleep
    )


@pytest.fixture
def trainer(outside: Track, store: FakeObjectStore) -> TrainerTrack:
    return trainer_of(store)


def no_sleep(seconds: float) -> None:
    """Let no time pass."""


def uids(store: FakeObjectStore) -> list[str]:
    return [record.uid for record in read_records(store, NAME)]


def test_a_trainer_places_itself_and_commits(trainer: TrainerTrack, store: FakeObjectStore) -> None:
    for fact in (placed(), commit(10), commit(20)):
        record = trainer.append(fact)
        assert record is not None
        assert record.uid == fact.uid
    assert uids(store) == ["declared", "opened 1", "placed a", "commit a 10", "commit a 20"]
    assert [record.uid for record in trainer.seen] == uids(store)[OPENED_SEQ:]


def test_notes_of_others_do_not_stop_a_trainer(
    trainer: TrainerTrack, outside: Track, store: FakeObjectStore
) -> None:
    trainer.append(placed())
    outside.note(draft("note", Kind.NOTE))
    outside.note(draft("claim", Kind.ATTEMPT_SUPERVISED, 1))
    trainer.append(commit(10))
    assert uids(store)[-3:] == ["note", "claim", "commit a 10"]


def test_a_record_is_read_once(trainer: TrainerTrack, store: FakeObjectStore) -> None:
    trainer.append(placed())
    store.calls.clear()
    trainer.append(commit(10))
    assert store.calls == [("get", log_key(NAME, 3)), ("create", log_key(NAME, 3))]


@pytest.mark.parametrize(
    "fence",
    [ENDED, OPENED_NEXT, draft("finished", Kind.RUN_FINISHED), placed("b")],
    ids=lambda fence: fence.uid,
)
def test_a_fenced_trainer_writes_nothing_more_whatever_it_tries(
    trainer: TrainerTrack, outside: Track, store: FakeObjectStore, fence: Draft
) -> None:
    trainer.append(placed())
    outside.note(fence)
    before = uids(store)
    with pytest.raises(Fenced, match=rf"launch a, is fenced by record 3 \({fence.kind}\)"):
        trainer.append(commit(10))
    store.calls.clear()
    with pytest.raises(Fenced):
        trainer.append(commit(20))
    with pytest.raises(Fenced):
        trainer.append(placed())  # though it landed once: anyone who is fenced exits
    with pytest.raises(Fenced):
        trainer.refresh()
    with pytest.raises(Fenced):
        trainer.decide(lambda records: quarantine("m"))
    assert store.calls == []
    assert uids(store) == before


def test_a_trainer_that_reads_on_learns_that_it_is_fenced(
    trainer: TrainerTrack, outside: Track
) -> None:
    trainer.append(placed())
    outside.note(draft("note", Kind.NOTE))
    assert [record.uid for record in trainer.refresh()] == ["opened 1", "placed a", "note"]
    outside.note(ENDED)
    with pytest.raises(Fenced):
        trainer.refresh()


def test_a_launch_appends_nothing_into_the_gap_that_a_lost_record_left(
    outside: Track, store: FakeObjectStore
) -> None:
    outside.note(draft("n1", Kind.NOTE))
    outside.note(ENDED)  # which fences it, and cannot be read
    lost = log_key(NAME, OPENED_SEQ + 1)
    store.delete(lost)
    with pytest.raises(TrackBroken, match=r"has lost its record 2: .*Nothing was written"):
        trainer_of(store).append(placed())
    with pytest.raises(TrackBroken, match=r"has lost its record 2: .*Nothing was written"):
        trainer_of(store).decide(lambda _: commit(3))
    assert store.get(lost) is None


def test_a_launch_asks_once_whether_a_record_was_lost(
    trainer: TrainerTrack, outside: Track, store: FakeObjectStore
) -> None:
    outside.note(draft("n1", Kind.NOTE))
    store.calls.clear()
    trainer.append(placed())
    trainer.append(commit(1))
    assert [method for method, _ in store.calls].count("list") == 1


def test_of_two_launches_of_one_attempt_the_second_is_fenced(
    trainer: TrainerTrack, store: FakeObjectStore
) -> None:
    rival = trainer_of(store, "b")
    rival.append(placed("b"))
    with pytest.raises(Fenced, match="attempt_placed"):
        trainer.append(placed("a"))
    rival.append(commit(10, "b"))
    assert uids(store)[-2:] == ["placed b", "commit b 10"]


def test_a_trainer_started_late_is_fenced_by_what_happened_before_it_started(
    outside: Track, store: FakeObjectStore
) -> None:
    for record in (ENDED, OPENED_NEXT, draft("placed c", Kind.ATTEMPT_PLACED, 2, launch_id="c")):
        outside.note(record)
    zombie = trainer_of(store, "z")
    with pytest.raises(Fenced):
        zombie.append(placed("z"))
    assert uids(store)[-1] == "placed c"


def test_a_launch_that_loses_the_race_for_its_last_seq_is_fenced(
    trainer: TrainerTrack, outside: Track, store: FakeObjectStore
) -> None:
    trainer.append(placed())
    create = store.create

    def create_after_the_end(key: str, data: bytes) -> bool:
        store.create = create  # type: ignore[method-assign]
        outside.note(ENDED)
        return create(key, data)

    store.create = create_after_the_end  # type: ignore[method-assign]
    with pytest.raises(Fenced):
        trainer.append(commit(10))
    assert uids(store)[-1] == "ended"


@pytest.mark.parametrize("fault", [Fault.LOST_BEFORE, Fault.LOST_AFTER, Fault.LOST_UNTIL_LATER])
def test_a_commit_whose_reply_is_lost_stands_once(
    trainer: TrainerTrack, store: FakeObjectStore, fault: Fault
) -> None:
    trainer.append(placed())
    store.fail("create", 1, fault)
    record = trainer.append(commit(10))
    assert record is not None
    assert record.seq == 3
    trainer.append(commit(20))
    assert uids(store)[2:] == ["placed a", "commit a 10", "commit a 20"]


def test_a_commit_that_landed_though_the_store_seemed_down_is_found_again(
    trainer: TrainerTrack, store: FakeObjectStore
) -> None:
    trainer.append(placed())
    store.fail("create", 1, Fault.LOST_AFTER)
    store.fail("get", 2, Fault.FAILS)  # the reading back
    with pytest.raises(StoreUnavailable):
        trainer.append(commit(10))
    first, again = trainer.append(commit(10)), trainer.append(commit(10))
    assert first == again
    assert first is not None
    assert uids(store)[2:] == ["placed a", "commit a 10"]


def test_a_commit_is_abandoned_when_its_source_is_quarantined_on_the_way(
    trainer: TrainerTrack, outside: Track, store: FakeObjectStore
) -> None:
    trainer.append(placed())
    outside.note(quarantine("bad"))
    assert trainer.append(commit(10), sources=frozenset({"bad"})) is None
    assert trainer.append(commit(11), sources=frozenset({"bad"})) is None  # seen before
    assert trainer.append(commit(12), sources=frozenset({"good"})) is not None
    assert trainer.append(commit(13)) is not None
    assert uids(store)[2:] == ["placed a", "quarantine", "commit a 12", "commit a 13"]


def test_a_commit_that_landed_before_the_quarantine_of_its_source_stands(
    trainer: TrainerTrack, outside: Track
) -> None:
    trainer.append(placed())
    first = trainer.append(commit(10), sources=frozenset({"bad"}))
    outside.note(quarantine("bad"))
    trainer.refresh()
    assert trainer.append(commit(10), sources=frozenset({"bad"})) == first


@pytest.mark.parametrize("kind", [Kind.CHECKPOINT_QUARANTINED, Kind.CHECKPOINT_DELETED])
def test_a_commit_is_abandoned_whether_its_source_was_withdrawn_before_it_or_on_the_way(
    trainer: TrainerTrack, outside: Track, kind: Kind
) -> None:
    trainer.append(placed())
    outside.note(draft("withdrawn", kind, manifest_sha256="gone"))
    for _ in ("on the way", "seen before"):
        assert trainer.append(commit(10), sources=frozenset({"gone"})) is None
    assert trainer.append(commit(10)) is not None


# --- several threads of one trainer ---


def test_threads_of_one_trainer_append_and_read_on_without_getting_in_each_others_way(
    trainer: TrainerTrack, outside: Track, store: FakeObjectStore
) -> None:
    trainer.append(placed())
    facts = [commit(step) for step in range(10, 90)]

    def act(fact: Draft) -> None:
        if fact.body["step"] % 3 == 0:
            trainer.refresh()
        if fact.body["step"] % 7 == 0:
            trainer.decide(lambda records: quarantine("m", uid=f"decided {fact.uid}"))
        assert trainer.append(fact) is not None

    with ThreadPoolExecutor(8) as pool:
        acts = [pool.submit(act, fact) for fact in facts]
        for number in range(20):
            outside.note(draft(f"note {number}", Kind.NOTE))
    for done in acts:
        done.result()
    trainer.refresh()
    landed = uids(store)
    assert len(landed) == len(set(landed))
    assert {fact.uid for fact in facts} <= set(landed)
    assert [record.uid for record in trainer.seen] == landed[OPENED_SEQ:]


def test_a_thread_that_reads_on_waits_for_the_one_that_appends(
    trainer: TrainerTrack, store: FakeObjectStore
) -> None:
    """Else both would take in the same record."""
    create = store.create
    reader = Thread(target=trainer.refresh)

    def create_while_another_reads_on(key: str, data: bytes) -> bool:
        created = create(key, data)
        reader.start()
        reader.join(0.1)
        return created

    store.create = create_while_another_reads_on  # type: ignore[method-assign]
    trainer.append(placed())
    reader.join()
    assert [record.uid for record in trainer.seen] == ["opened 1", "placed a"]


def test_a_thread_that_is_fenced_stops_the_other_threads(
    trainer: TrainerTrack, outside: Track, store: FakeObjectStore
) -> None:
    trainer.append(placed())
    outside.note(ENDED)
    before = uids(store)
    with ThreadPoolExecutor(8) as pool:
        acts = [pool.submit(trainer.append, commit(step)) for step in range(10, 30)]
    assert all(isinstance(act.exception(), Fenced) for act in acts)
    assert uids(store) == before


# --- a trainer's own decision ---


def test_a_trainers_decision_is_made_again_when_it_lost_its_place(
    trainer: TrainerTrack, outside: Track, store: FakeObjectStore
) -> None:
    trainer.append(placed())
    seen: list[list[str]] = []

    def choose(records: list[Record]) -> Draft:
        seen.append([record.uid for record in records])
        if len(seen) == 1:
            outside.note(draft("note", Kind.NOTE))
        return quarantine("m", uid=f"decision {len(seen)}")

    record = trainer.decide(choose)
    assert record is not None
    assert record.uid == "decision 2"
    assert seen == [["opened 1", "placed a"], ["opened 1", "placed a", "note"]]
    assert trainer.append(commit(10)) is not None
    assert uids(store)[3:] == ["note", "decision 2", "commit a 10"]


def test_a_trainers_decision_is_fenced_by_what_takes_its_place(
    trainer: TrainerTrack, outside: Track, store: FakeObjectStore
) -> None:
    trainer.append(placed())

    def choose(records: list[Record]) -> Draft:
        outside.note(ENDED)
        return quarantine("m")

    with pytest.raises(Fenced):
        trainer.decide(choose)
    assert uids(store)[-1] == "ended"


def test_a_trainer_with_nothing_to_decide_writes_nothing(
    trainer: TrainerTrack, store: FakeObjectStore
) -> None:
    assert trainer.decide(lambda records: None) is None
    assert uids(store) == ["declared", "opened 1"]


def test_a_trainers_decision_that_never_gets_its_place_gives_up(
    trainer: TrainerTrack, outside: Track
) -> None:
    def choose(records: list[Record]) -> Draft:
        outside.note(draft(f"note {len(records)}", Kind.NOTE))
        return quarantine("m")

    with pytest.raises(Contended, match=f"{DECISIONS_MAX} times in a row"):
        trainer.decide(choose)


@pytest.mark.parametrize("fault", [Fault.LOST_BEFORE, Fault.LOST_AFTER, Fault.LOST_UNTIL_LATER])
def test_a_trainers_decision_whose_reply_is_lost_stands_once(
    trainer: TrainerTrack, store: FakeObjectStore, fault: Fault
) -> None:
    store.fail("create", 1, fault)
    assert trainer.decide(lambda records: quarantine("m")) is not None
    assert uids(store)[2:] == ["quarantine"]


# --- where it starts ---


@pytest.mark.parametrize("seq", [0, 2, 3, 9])
def test_a_trainer_that_is_not_started_at_its_own_attempt_does_not_start(
    outside: Track, store: FakeObjectStore, seq: int
) -> None:
    """From any later place it would not meet what fences it."""
    outside.note(ENDED)
    outside.note(OPENED_NEXT)
    with pytest.raises(TrackBroken, match=f"record {seq}, where attempt 1 should have been opened"):
        trainer_of(store, seq=seq)


def test_a_trainer_notices_a_broken_chain(
    trainer: TrainerTrack, outside: Track, store: FakeObjectStore
) -> None:
    outside.note(draft("note", Kind.NOTE))
    outside.note(draft("note 2", Kind.NOTE))
    store.objects[log_key(NAME, 2)] = store.objects[log_key(NAME, 2)].replace(b"note", b"NOTE", 1)
    with pytest.raises(TrackBroken):
        trainer.append(placed())
    assert len(store.objects) == 4
