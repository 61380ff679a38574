"""A ledger of an older version is rebuilt beside the old one, which is read meanwhile.

Real processes: killed in the middle and in the swap, two that come at once; on SQLite and on Postgres.
"""

from __future__ import annotations

import gzip
import os
import signal
import sqlite3
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path
from random import Random
from typing import Any

import pytest
import sqlalchemy as sa

from tests.forked import PROCESSES
from tests.random_histories import random_dataset, random_run
from tracks_dagster.ledger.effects import projector
from tracks_dagster.ledger.effects.database import (
    beside,
    open_ledger,
    open_ledger_to_read,
    schema,
    sql_ledger,
)
from tracks_dagster.ledger.effects.database.engine import make_engine, transaction
from tracks_dagster.ledger.effects.database.sql_ledger import SqlLedger
from tracks_dagster.ledger.effects.database.tables import metadata
from tracks_dagster.ledger.effects.projector import Projector, Reindexed
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.stores import open_store
from tracks_dagster.track.errors import LedgerError

PROCESS_S_MAX = 120
RUN_IDS = [f"r-{number}" for number in range(4)]
STORED = Path(__file__).parents[1] / "history"


@pytest.fixture(params=["sqlite", "postgres"])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    """A store with four runs and a dataset."""
    store = open_store(str(tmp_path / "store"))
    for number, run_id in enumerate(RUN_IDS):
        random_run(Random(number), run_id).write_to(store)
    random_dataset(Random(0), "text").write_to(store)
    return str(tmp_path / "store")


@pytest.fixture
def older_url(ledger_url: str, store_url: str) -> str:
    """A ledger of those tracks as an older version may have left it: a column less, and one more."""
    Projector(open_store(store_url), open_ledger(ledger_url)).scan()
    change(
        ledger_url,
        "update ledger_version set version_num = '0008'",
        "alter table training_attempts drop column packages_sha256",
        "alter table training_attempts add column forgotten text",
    )
    return ledger_url


def project(store_url: str, ledger: Ledger) -> Reindexed:
    """Do what `wiring` does with an outdated ledger."""
    return Projector(open_store(store_url, probe=False), ledger).reindex(only_outdated=True)


def change(url: str, *statements: str) -> None:
    with transaction(make_engine(url), "change", write=True) as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def version_in(url: str) -> str | None:
    with transaction(make_engine(url), "read", write=False) as connection:
        return schema.version_of(connection)


def owners(url: str) -> list[str]:
    """The runs that the tables hold, read as a process of any version may."""
    rows = SqlLedger(make_engine(url)).query("select run_id from training_runs order by run_id")
    return [row["run_id"] for row in rows]


def left_beside(url: str) -> list[str]:
    """What a rebuilding left beside the tables."""
    if url.startswith("sqlite"):
        file = Path(url.removeprefix("sqlite:///"))
        return [each.name for each in file.parent.glob("ledger.db-next*")]
    with transaction(make_engine(url), "read", write=False) as connection:
        found = sa.text("select nspname from pg_namespace where nspname like '%ledger_next'")
        return list(connection.scalars(found))


def whole(store_url: str, tmp_path: Path) -> dict[str, Any]:
    """What a ledger holds that has only ever been of this version."""
    fresh = open_ledger(f"sqlite:///{tmp_path / 'fresh.db'}")
    Projector(open_store(store_url), fresh).scan()
    return fresh.dump()


def test_an_older_ledger_becomes_what_a_new_one_is(
    older_url: str, store_url: str, tmp_path: Path
) -> None:
    with pytest.raises(LedgerError, match=r"an older version wrote it \(schema 0008.*reindex"):
        open_ledger(older_url)
    ledger = open_ledger(older_url, when_outdated=partial(project, store_url))
    assert ledger.dump() == whole(store_url, tmp_path)
    assert open_ledger_to_read(older_url).dump() == ledger.dump()
    assert version_in(older_url) == schema.current_version()
    assert left_beside(older_url) == []
    ledger.query("select * from attempt_time")  # the views came along, and so did the search
    assert ledger.search(["word"], limit=1) is not None
    with transaction(make_engine(older_url), "read", write=False) as connection:
        names = {
            column["name"] for column in sa.inspect(connection).get_columns("training_attempts")
        }
    assert names == {column.name for column in metadata.tables["training_attempts"].columns}


def test_the_ledger_of_the_last_migration_gets_the_same_values_again(tmp_path: Path) -> None:
    # Made with alembic, by the version before this, of the store in home_before_rooms.tar.gz.
    path = tmp_path / "ledger.db"
    path.write_bytes(gzip.decompress((STORED / "ledger_0008.db.gz").read_bytes()))
    with tarfile.open(STORED / "home_before_rooms.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    url = f"sqlite:///{path}"
    before = SqlLedger(make_engine(url))
    columns = {
        table["name"]: [
            column["name"]
            for column in sa.inspect(make_engine(url)).get_columns(table["name"])
            if column["name"]
            != "state_why"  # a sentence, in the words of the version that projects
        ]
        for table in before.query("select name from sqlite_master where type = 'table'")
        if table["name"] in metadata.tables
    }
    held = {
        name: before.query(f"select {', '.join(of_table)} from {name} order by 1, 2")
        for name, of_table in columns.items()
    }
    assert len(held["training_attempts"]) == 3
    ledger = open_ledger(url, when_outdated=partial(project, str(tmp_path / "store")))
    for name, rows in held.items():
        again = ledger.query(f"select {', '.join(columns[name])} from {name} order by 1, 2")
        assert again == rows, name


class Hooked:
    """A ledger whose rebuilding calls `hook` before each track that it takes in."""

    def __init__(self, ledger: SqlLedger, hook: Callable[[], None]) -> None:
        self._ledger, self._hook = ledger, hook

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    @contextmanager
    def beside(self, **given: Any) -> Iterator[Any]:
        with self._ledger.beside(**given) as fresh:
            yield fresh and Hooked(fresh, self._hook)

    def apply(self, track: str, **given: Any) -> bool:
        self._hook()
        return self._ledger.apply(track, **given)


def test_the_old_ledger_is_read_until_the_new_one_is_whole(older_url: str, store_url: str) -> None:
    result = []

    def look() -> None:
        assert owners(older_url) == RUN_IDS
        with pytest.raises(LedgerError, match=r"rebuilds it\. That has started") as refused:
            open_ledger_to_read(older_url)
        result.append(str(refused.value).partition("started: ")[2])

    open_ledger(older_url, when_outdated=lambda it: project(store_url, Hooked(it, look)))  # type: ignore[arg-type]
    assert result == [f"{count} tracks so far." for count in range(len(RUN_IDS) + 1)]
    open_ledger_to_read(older_url)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def rebuild_and_die(url: str, store_url: str, at: str) -> None:
    """Rebuild the ledger, and be killed in the middle."""
    left = int(at) if at.isdecimal() else 99

    def hook() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            die()

    if at == "the swap begins":
        beside.swap = sql_ledger.swap = lambda engine, fresh: die()  # type: ignore[assignment]
    elif at == "the swap is half done":
        beside.make_reader = lambda connection: die()  # the last statements on Postgres
        beside.sqlite3.connect = partial(sqlite3.connect, factory=Dying)  # type: ignore[assignment]
    open_ledger(url, when_outdated=lambda it: project(store_url, Hooked(it, hook)))  # type: ignore[arg-type]


class Dying(sqlite3.Connection):
    """A connection that copies some pages into another file and is killed."""

    def backup(self, target: sqlite3.Connection, **_: Any) -> None:
        """Copy five pages at a time, and die."""
        super().backup(target, pages=5, progress=lambda *_: die())


@pytest.mark.parametrize(
    "at",
    [
        pytest.param("0", marks=pytest.mark.full),
        "3",
        pytest.param("the swap begins", marks=pytest.mark.full),
        "the swap is half done",
    ],
)
def test_one_that_is_killed_leaves_the_old_ledger_and_the_next_goes_on(
    at: str, older_url: str, store_url: str, tmp_path: Path
) -> None:
    child = PROCESSES.Process(target=rebuild_and_die, args=(older_url, store_url, at))
    child.start()
    child.join(PROCESS_S_MAX)
    assert child.exitcode == -signal.SIGKILL
    assert version_in(older_url) == "0008"
    assert owners(older_url) == RUN_IDS
    assert left_beside(older_url)

    taken_in = 0

    def count() -> None:
        nonlocal taken_in
        taken_in += 1

    ledger = open_ledger(
        older_url,
        when_outdated=lambda it: project(store_url, Hooked(it, count)),  # type: ignore[arg-type]
    )
    assert taken_in == len(RUN_IDS) + 1 - (int(at) if at.isdecimal() else len(RUN_IDS) + 1)
    assert ledger.dump() == whole(store_url, tmp_path)
    assert left_beside(older_url) == []


def come_at_once(barrier: Barrier, answers: Any, url: str, store_url: str) -> None:
    barrier.wait(PROCESS_S_MAX)
    done: list[Reindexed] = []
    ledger = open_ledger(url, when_outdated=lambda it: done.append(project(store_url, it)))
    answers.put((done[0].track_count if done else 0, len(ledger.dump()["training_runs"])))


def test_of_processes_that_come_at_once_one_rebuilds_and_the_others_wait(
    older_url: str, store_url: str
) -> None:
    barrier, answers = PROCESSES.Barrier(3), PROCESSES.SimpleQueue()
    children = [
        PROCESSES.Process(target=come_at_once, args=(barrier, answers, older_url, store_url))
        for _ in range(3)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(PROCESS_S_MAX)
    assert [child.exitcode for child in children] == [0, 0, 0]
    assert sorted(answers.get() for _ in children) == [(0, 4), (0, 4), (5, 4)]


def test_a_wait_that_is_too_long_names_what_it_waited_for(
    older_url: str,
    store_url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(beside, "WAIT_S_MAX", 0.1)
    monkeypatch.setattr(beside, "WAIT_POLL_S", 0.05)
    refused: list[str] = []

    def another_comes() -> None:
        if len(refused) < 2:
            with pytest.raises(LedgerError) as caught:
                open_ledger(older_url, when_outdated=partial(project, store_url))
            refused.append(str(caught.value))

    open_ledger(older_url, when_outdated=lambda it: project(store_url, Hooked(it, another_comes)))  # type: ignore[arg-type]
    assert "another process still rebuilds it, 1 tracks so far" in refused[1]
    assert "the old ledger can be read" in refused[1]
    assert "waiting for it" in caplog.text


def test_progress_is_shown_with_the_time_that_is_left(
    older_url: str,
    store_url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(projector, "PROGRESS_S", 0.0)
    open_ledger(older_url, when_outdated=partial(project, store_url))
    assert "Rebuilding the ledger: 2 of 5 tracks; about 0 min left." in caplog.text


def lose(store_url: str, run_id: str) -> None:
    store = open_store(store_url, probe=False)
    for key in list(store.list(f"runs/{run_id}/")):
        store.delete(key)


def test_what_the_old_ledger_remembers_of_lost_records_is_taken_over_and_named(
    older_url: str, store_url: str, tmp_path: Path
) -> None:
    held = whole(store_url, tmp_path)
    lose(store_url, "r-2")
    done: list[Reindexed] = []
    ledger = open_ledger(older_url, when_outdated=lambda it: done.append(project(store_url, it)))
    [problem] = done[0].problems
    assert problem.startswith("runs/r-2: the store has no such track")
    # The column that the older version had not.
    lacking = {"training_attempts": {"packages_sha256": None}}
    for name, rows in ledger.dump().items():
        expected = [
            row | (lacking.get(name, {}) if row.get("run_id") == "r-2" else {})
            for row in held[name]
        ]
        assert rows == expected, name


def test_what_would_not_fit_the_new_tables_is_not_thrown_away(
    older_url: str, store_url: str
) -> None:
    change(older_url, "alter table training_attempts drop column lost_steps")  # which is never null
    lose(store_url, "r-2")
    with pytest.raises(LedgerError, match=r"fit the new tables.*Nothing was changed"):
        open_ledger(older_url, when_outdated=partial(project, store_url))
    assert version_in(older_url) == "0008"
    assert owners(older_url) == RUN_IDS

    it = SqlLedger(make_engine(older_url))
    Projector(open_store(store_url), it).reindex(forgets_lost=True)
    assert owners(older_url) == ["r-0", "r-1", "r-3"]
    assert version_in(older_url) == schema.current_version()


def test_a_process_of_the_version_before_writes_no_more(older_url: str, store_url: str) -> None:
    ledger = open_ledger(older_url, when_outdated=partial(project, store_url))
    change(older_url, "update ledger_version set version_num = '0009-another'")
    history = random_run(Random(9), "r-9")
    history.write_to(open_store(store_url))
    with pytest.raises(LedgerError, match="another version of this program has rebuilt it"):
        Projector(open_store(store_url), ledger).project(history.name)
    assert ledger.cursor(history.name) is None


def test_an_equal_number_with_another_fingerprint_is_projected_again(
    older_url: str, store_url: str
) -> None:
    other = f"{schema.PROJECTION:04d}-another"
    change(older_url, f"update ledger_version set version_num = '{other}'")
    with pytest.raises(LedgerError, match=rf"another version wrote it \(schema {other}"):
        open_ledger_to_read(older_url)
    open_ledger(older_url, when_outdated=partial(project, store_url))
    assert version_in(older_url) == schema.current_version()


def test_who_might_read_the_old_tables_may_read_the_new_ones(
    postgres_url: str, store_url: str
) -> None:
    open_ledger(postgres_url)
    change(
        postgres_url,
        "create role looker_on",
        "grant select on notes to looker_on",
        "grant select on run_time to public",
        "update ledger_version set version_num = '0008'",
    )
    try:
        open_ledger(postgres_url, when_outdated=partial(project, store_url))
        change(
            postgres_url,
            "set local role looker_on",
            "select * from notes",
            "select * from run_time",
        )
        with pytest.raises(LedgerError, match="permission denied"):
            change(postgres_url, "set local role looker_on", "select * from texts")
    finally:
        change(postgres_url, "drop owned by looker_on", "drop role looker_on")


def test_a_view_of_somebodys_own_keeps_its_tables(postgres_url: str, store_url: str) -> None:
    open_ledger(postgres_url)
    old = "update ledger_version set version_num = '0008'"
    change(postgres_url, old, "create view mine as select text from notes")
    with pytest.raises(LedgerError, match="cannot drop table notes because other objects depend"):
        open_ledger(postgres_url, when_outdated=partial(project, store_url))
    assert version_in(postgres_url) == "0008"
    change(postgres_url, "drop view mine")
    open_ledger(postgres_url, when_outdated=partial(project, store_url))
    assert version_in(postgres_url) == schema.current_version()
    assert left_beside(postgres_url) == []


@pytest.mark.parametrize("what", ["nothing", "column", "null", "type", "index"])
def test_the_fingerprint_is_of_all_that_tables_are_made_of(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = sa.MetaData()
    for table in metadata.sorted_tables:
        table.to_metadata(copied)
    notes = copied.tables["notes"]
    match what:
        case "column":
            notes.append_column(sa.Column("mood", sa.Text))
        case "null":
            notes.c.text.nullable = True
        case "type":
            notes.c.text.type = sa.Double()
        case "index":
            sa.Index("ix_notes_author", notes.c.author)
    monkeypatch.setattr(schema, "metadata", copied)
    current = schema.current_version.__wrapped__()
    assert (current == schema.current_version()) is (what == "nothing")


def test_a_changed_view_changes_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    before = schema.current_version()
    monkeypatch.setattr(schema, "select_of", lambda view: f"select 1 as {view}")
    assert schema.current_version.__wrapped__() != before
