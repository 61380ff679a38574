"""The projector, on a real SQLite ledger and a store in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.fakes import FakeObjectStore
from tests.histories import History
from tests.ledgers import new_ledger
from tests.random_histories import random_dataset, random_run
from tracks_dagster.ledger.effects.database import open_ledger
from tracks_dagster.ledger.effects.database.sql_ledger import SqlLedger
from tracks_dagster.ledger.effects.projector import Projector, Reindexed
from tracks_dagster.track.errors import LedgerError, RowRefused, TrackBroken
from tracks_dagster.track.records import canonical_json
from tracks_dagster.track.track import log_key


@pytest.fixture
def ledger(tmp_path: Path) -> SqlLedger:
    return new_ledger(tmp_path / "ledger.db")


def trained() -> History:
    return History().declare().open().place().restore().commit(10)


def test_a_track_that_is_not_there_projects_to_nothing(
    store: FakeObjectStore, ledger: SqlLedger
) -> None:
    Projector(store, ledger).project("runs/r-1")
    assert ledger.cursor("runs/r-1") is None


def test_projecting_again_changes_nothing_and_reads_only_what_is_new(
    store: FakeObjectStore, ledger: SqlLedger
) -> None:
    history = trained()
    history.write_to(store)
    projector = Projector(store, ledger)
    projector.project(history.name)
    dump = ledger.dump()
    store.calls.clear()
    projector.project(history.name)
    assert ledger.dump() == dump
    assert store.calls == [("get", log_key(history.name, 5))]


@pytest.mark.parametrize("seed", range(10))
def test_two_projectors_in_turn_leave_what_one_from_scratch_does(
    seed: int, store: FakeObjectStore, ledger: SqlLedger, tmp_path: Path
) -> None:
    history = random_run(Random(seed), records_max=30)
    projectors = [Projector(store, ledger), Projector(store, ledger)]
    for count in range(len(history.records) + 1):
        history.write_to(store, count=count)
        projectors[count % 3 % 2].project(history.name)
    history.write_to(store)
    projectors[0].project(history.name)

    fresh = open_ledger(f"sqlite:///{tmp_path / 'fresh.db'}")
    assert Projector(store, fresh).scan() == 1
    assert ledger.dump() == fresh.dump()


def test_a_scan_finds_every_track_and_nothing_else(
    store: FakeObjectStore, ledger: SqlLedger
) -> None:
    histories = [
        *(random_run(Random(n), run_id) for n, run_id in enumerate(["a", "a-b", "ab"])),
        random_dataset(Random(0), "text"),
    ]
    for history in histories:
        history.write_to(store)
    store.put("runs/a/attempts/1/l/step-3/chunks/00", b"")
    store.put("runs/only-bytes/attempts/1/early/x/exit.json", b"")
    store.put("datasets/text/log.txt", b"")
    assert Projector(store, ledger).scan() == 4
    assert {row["track"] for row in ledger.query("select track from track_cursors")} == {
        history.name for history in histories
    }


def test_another_process_that_emptied_the_ledger_does_not_confuse_a_projector(
    store: FakeObjectStore, ledger: SqlLedger
) -> None:
    history = trained()
    history.write_to(store)
    projector = Projector(store, ledger)
    projector.project(history.name)
    dump = ledger.dump()
    ledger.forget(history.name)
    projector.project(history.name)
    assert ledger.dump() == dump


def newer_record(history: History, **changes: Any) -> bytes:
    """The bytes of a next record as a newer version may write it."""
    stored = {
        "seq": len(history.records),
        "uid": "f" * 32,
        "at": "2026-01-31T03:00:00.000000Z",
        "kind": "note",
        "prev_sha256": history.records[-1].sha256,
        "body": {},
    }
    return canonical_json(stored | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "attempt_teleported"}, "kind 'attempt_teleported', which this version does not"),
        ({"kind": "node_struck"}, "node_struck does not belong to a run's track"),
        (
            {"kind": "attempt_ended", "attempt_id": 1, "body": {"reason": "bored"}},
            "A body is not AttemptEnded",
        ),
    ],
)
def test_a_record_of_a_newer_version_is_named_and_those_before_it_are_projected(
    changes: dict[str, Any], message: str, store: FakeObjectStore, ledger: SqlLedger
) -> None:
    history, other = trained(), History("r-2").declare()
    history.write_to(store)
    other.write_to(store)
    store.create(log_key(history.name, 5), newer_record(history, **changes))
    projector = Projector(store, ledger)

    with pytest.raises(TrackBroken, match=message):
        projector.project(history.name)
    with pytest.raises(TrackBroken, match=f"1 of 2 tracks could not be projected whole.*{message}"):
        projector.scan()

    assert {row["run_id"] for row in ledger.query("select run_id from training_runs")} == {
        "r-1",
        "r-2",
    }
    cursor = ledger.cursor(history.name)
    assert cursor is not None
    assert cursor.seq == 4


def test_a_ledger_of_another_store_is_refused(store: FakeObjectStore, ledger: SqlLedger) -> None:
    history = trained()
    history.write_to(store)
    Projector(store, ledger).project(history.name)

    other = FakeObjectStore()
    History().declare(owner="bob").open().place().restore().commit(10).write_to(other)
    with pytest.raises(LedgerError, match=r"ledger is of another store.*--forget-lost`"):
        Projector(other, ledger).project(history.name)

    shorter = FakeObjectStore()
    history.write_to(shorter, count=3)
    with pytest.raises(LedgerError, match="the store holds records up to 2, and not that one"):
        Projector(shorter, ledger).project(history.name)

    with pytest.raises(LedgerError, match="the store holds none that can be read"):
        Projector(FakeObjectStore(), ledger).project(history.name)
    [kept] = Projector(other, ledger).reindex().problems
    assert "`tracks reindex --forget-lost`" in kept
    assert ledger.query("select owner from training_runs") == [{"owner": "ann"}]
    replaced = Projector(other, ledger).reindex(forgets_lost=True)
    assert replaced == Reindexed(track_count=1, problems=())
    assert ledger.query("select owner from training_runs") == [{"owner": "bob"}]


def test_a_projector_that_always_loses_gives_up_and_says_so(store: FakeObjectStore) -> None:
    class Contended:
        def cursor(self, track: str) -> None:
            return None

        def apply(self, track: str, **_: Any) -> bool:
            return False

    trained().write_to(store)
    with pytest.raises(LedgerError, match="other projectors were faster 64 times"):
        Projector(store, Contended()).project("runs/r-1")  # type: ignore[arg-type]


def test_a_scan_reads_only_the_end_of_a_track_that_the_ledger_holds(
    store: FakeObjectStore, ledger: SqlLedger
) -> None:
    history = trained()
    history.write_to(store)
    Projector(store, ledger).scan()
    store.calls.clear()
    assert Projector(store, ledger).scan() == 1  # another process, which remembers nothing
    gets = [key for method, key in store.calls if method == "get"]
    assert gets == [log_key(history.name, seq) for seq in (0, 4, 5)]  # there is one; its end


def fill(store: FakeObjectStore, ledger: SqlLedger) -> None:
    for number in range(4):
        random_run(Random(number), f"r-{number}").write_to(store)
    Projector(store, ledger).scan()


class Watched:
    """A ledger in whose transactions of a reindex something happens first, one at a time."""

    def __init__(self, ledger: SqlLedger, first: Callable[[], None]) -> None:
        self._ledger = ledger
        self._first = first
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    @contextmanager
    def beside(self, **given: Any) -> Iterator[Watched]:
        with self._ledger.beside(**given) as fresh:
            assert fresh is not None
            yield type(self)(fresh, self._first)

    def apply(self, track: str, **given: Any) -> bool:
        with self._lock:
            self._first()
        return self._ledger.apply(track, **given)


@pytest.mark.parametrize("killed_at", [1, 2, 3, 4])
def test_a_reindex_that_is_killed_leaves_no_less_than_there_was(
    killed_at: int, store: FakeObjectStore, ledger: SqlLedger
) -> None:
    fill(store, ledger)
    before = ledger.dump()
    left = killed_at

    def killed() -> None:
        nonlocal left
        left -= 1
        assert ledger.dump() == before  # what a reader finds meanwhile
        if not left:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Projector(store, Watched(ledger, killed)).reindex()  # type: ignore[arg-type]
    assert ledger.dump() == before
    assert Projector(store, ledger).reindex() == Reindexed(track_count=4, problems=())
    assert ledger.dump() == before


class FarStore(FakeObjectStore):
    """Gives nothing of the first run before it was asked for the second."""

    def __init__(self) -> None:
        super().__init__("s3://far/away")
        self.goes_on = threading.Event()

    def get(self, key: str, bytes_max: int | None = None) -> bytes | None:
        if key.startswith("runs/r-1/"):
            self.goes_on.set()
        elif key.startswith("runs/r-0/"):
            assert self.goes_on.wait(timeout=60), "one track after another"
        return super().get(key, bytes_max)


def test_of_a_far_store_several_tracks_are_taken_in_at_once(
    ledger: SqlLedger, tmp_path: Path
) -> None:
    far, near = FarStore(), FakeObjectStore("/a/folder")
    for store in (far, near):
        for number in range(20):
            random_run(Random(number), f"r-{number}").write_to(store)
        store.put("runs/r-3x/code/a.diff", b"no track")
        store.put(log_key("runs/r-5", 0), b"{}")
    done = Projector(far, ledger).reindex()
    one_by_one = new_ledger(tmp_path / "one.db")
    assert Projector(near, one_by_one).reindex() == done
    assert (done.track_count, len(done.problems)) == (20, 1)
    assert ledger.dump() == one_by_one.dump()


def test_a_reindex_goes_on_past_a_track_that_cannot_be_read(
    store: FakeObjectStore, ledger: SqlLedger
) -> None:
    fill(store, ledger)
    whole = ledger.dump()
    store.put(log_key("runs/r-1", 0), b"{}")
    done = Projector(store, ledger).reindex()
    [problem] = done.problems
    assert problem.startswith("runs/r-1: Record 0 cannot be read")
    assert ledger.dump() == whole  # what it remembers of that run, too
    assert Projector(store, ledger).reindex(forgets_lost=True).problems
    assert {row["run_id"] for row in ledger.query("select run_id from training_runs")} == {
        *("r-0", "r-2", "r-3")
    }


def test_a_reindex_keeps_a_track_that_the_store_lost_until_it_is_let_go(
    store: FakeObjectStore, ledger: SqlLedger
) -> None:
    fill(store, ledger)
    for key in store.list("runs/r-2/"):
        store.delete(key)
    [problem] = Projector(store, ledger).reindex().problems
    assert problem.startswith("runs/r-2: the store has no such track")
    assert ledger.cursor("runs/r-2") is not None
    assert Projector(store, ledger).reindex(forgets_lost=True).problems == ()
    assert ledger.cursor("runs/r-2") is None
    assert ledger.query("select run_id from training_runs where run_id = 'r-2'") == []


def test_what_is_appended_during_a_reindex_is_not_lost(
    store: FakeObjectStore, ledger: SqlLedger
) -> None:
    fill(store, ledger)
    history = random_run(Random(9), "r-9", records_max=2)
    another = Projector(store, ledger)

    def appended() -> None:
        if len(history.records) < 20:
            history.note("meanwhile")
            history.write_to(store)
            another.project(history.name)

    assert Projector(store, Watched(ledger, appended)).reindex().problems == ()  # type: ignore[arg-type]
    cursor = ledger.cursor(history.name)
    assert cursor is not None
    assert cursor.seq == len(history.records) - 1


def test_a_track_that_claims_to_be_anothers_writes_over_no_row(
    store: FakeObjectStore, ledger: SqlLedger
) -> None:
    fill(store, ledger)
    whole = ledger.dump()
    for seq, data in enumerate(History("r-1").declare(owner="mallory").stored):
        store.put(log_key("runs/evil", seq), data)
    with pytest.raises(TrackBroken, match=r"of runs/evil says that it is of runs/r-1"):
        Projector(store, ledger).scan()
    assert ledger.dump() == whole


def test_the_record_that_the_database_refuses_is_named_and_those_before_it_are_taken_in(
    store: FakeObjectStore, ledger: SqlLedger
) -> None:
    history = trained()
    for number in range(9):
        history.note(f"note {number}")
    history.write_to(store)

    class Refusing(Watched):
        def apply(self, track: str, *, rows: Any, **given: Any) -> bool:
            if any(row["text"] == "note 5" for row in rows["notes"]):
                raise RowRefused("An index entry is too long.")
            return self._ledger.apply(track, rows=rows, **given)

    refusing = Refusing(ledger, lambda: None)
    named = r"Record 10 \(note\) of runs/r-1 cannot be taken into the ledger: An index entry"
    for projector in (Projector(store, refusing), Projector(store, refusing)):  # type: ignore[arg-type]
        with pytest.raises(TrackBroken, match=named):
            projector.project(history.name)
        assert len(ledger.query("select seq from notes")) == 5
    done = Projector(store, refusing).reindex()  # type: ignore[arg-type]
    assert "Record 10 (note)" in done.problems[0]
    assert len(ledger.query("select seq from notes")) == 5
