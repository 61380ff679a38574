"""Real processes at one ledger: schemas made at once, cursors moved at once, refusals."""

from __future__ import annotations

import multiprocessing
import sqlite3
import threading
import time
from collections import Counter
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.forked import PROCESSES
from tests.histories import History
from tracks_dagster.ledger.effects.database import open_ledger, open_ledger_to_read
from tracks_dagster.ledger.effects.database.engine import make_engine, transaction
from tracks_dagster.ledger.effects.database.schema import VERSION_TABLE, current_version
from tracks_dagster.ledger.effects.database.tables import metadata
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.ports import Cursor
from tracks_dagster.stores import open_store
from tracks_dagster.track.errors import LedgerError, SettingsError

PROCESS_S_MAX = 120
SEQS = 16


@pytest.fixture(params=["sqlite", "postgres"])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url


def at_once(count: int, target: Any, *arguments: Any) -> list[Any]:
    """Run `target(barrier, *arguments)` in `count` processes; return what each returned."""
    barrier = PROCESSES.Barrier(count)
    answers: Any = PROCESSES.SimpleQueue()
    children = [
        PROCESSES.Process(target=_answer, args=(answers, target, barrier, *arguments))
        for _ in range(count)
    ]
    try:
        for child in children:
            child.start()
        for child in children:
            child.join(PROCESS_S_MAX)
        assert [child.exitcode for child in children] == [0] * count
    finally:
        for child in children:
            child.kill()
    return [answers.get() for _ in children]


def _answer(answers: Any, target: Any, *arguments: Any) -> None:
    answers.put(target(*arguments))


def open_at_once(barrier: Barrier, url: str) -> int:
    barrier.wait(PROCESS_S_MAX)
    return len(open_ledger(url).dump())


def move_every_cursor(barrier: Barrier, url: str) -> list[int]:
    """Try to win every step of one cursor; return the seqs that this process won."""
    ledger = open_ledger(url)
    barrier.wait(PROCESS_S_MAX)
    won = []
    for seq in range(SEQS):
        expected = Cursor(seq=seq - 1, sha256=f"{seq - 1:064x}") if seq else None
        while (found := ledger.cursor("runs/r-1")) != expected and (
            found is None or found.seq < seq
        ):
            time.sleep(0)
        note = {
            "run_id": "r-1",
            "seq": seq,
            "kind": "note",
            "attempt_id": None,
            "author": multiprocessing.current_process().name,
            "text": "won",
            "data_json": "{}",
            "noted_at": History().at,
        }
        advanced = Cursor(seq=seq, sha256=f"{seq:064x}")
        if ledger.apply("runs/r-1", expected=expected, advanced=advanced, rows={"notes": [note]}):
            won.append(seq)
    return won


def project_while_it_grows(barrier: Barrier, url: str, store_url: str) -> None:
    projector = Projector(open_store(store_url, probe=False), open_ledger(url))
    barrier.wait(PROCESS_S_MAX)
    for _ in range(SEQS):
        projector.project("runs/r-1")


def test_processes_that_start_at_once_make_one_schema(ledger_url: str) -> None:
    assert at_once(3, open_at_once, ledger_url) == [len(metadata.tables)] * 3


def test_every_step_of_a_cursor_has_one_winner(ledger_url: str) -> None:
    open_ledger(ledger_url)
    won = Counter(seq for seqs in at_once(2, move_every_cursor, ledger_url) for seq in seqs)
    assert won == Counter(range(SEQS))
    assert len(open_ledger(ledger_url).dump()["notes"]) == SEQS


def test_projectors_in_two_processes_and_one_reindex_leave_the_rows_of_one(
    ledger_url: str, tmp_path: Path
) -> None:
    store_url = str(tmp_path / "store")
    store = open_store(store_url)
    history = History().declare().open().place().restore()
    for step in range(1, SEQS):
        history.commit(step)
    history.write_to(store)

    ledger = open_ledger(ledger_url)
    at_once(2, project_while_it_grows, ledger_url, store_url)
    grown = ledger.dump()
    Projector(store, ledger).reindex()

    assert ledger.dump() == grown
    assert len(grown["checkpoints"]) == SEQS - 1


def test_a_ledger_of_a_newer_version_is_refused_and_left_alone(ledger_url: str) -> None:
    open_ledger(ledger_url)
    with transaction(make_engine(ledger_url), "change", write=True) as connection:
        connection.execute(sa.text(f"update {VERSION_TABLE} set version_num = '9999'"))
    known = rf"newer version \(schema 9999; this one knows {current_version()}\)"
    for open_it in (open_ledger, open_ledger_to_read):
        with pytest.raises(LedgerError, match=known):
            open_it(ledger_url)
    with transaction(make_engine(ledger_url), "read", write=False) as connection:
        assert connection.scalar(sa.text(f"select version_num from {VERSION_TABLE}")) == "9999"


def test_tables_that_cannot_all_be_made_are_not_made(ledger_url: str) -> None:
    with transaction(make_engine(ledger_url), "change", write=True) as connection:
        connection.execute(sa.text("create table snapshots (mine text)"))
    with pytest.raises(LedgerError, match=r"Cannot create the tables of the ledger.*snapshots"):
        open_ledger(ledger_url)
    with transaction(make_engine(ledger_url), "read", write=False) as connection:
        assert sa.inspect(connection).get_table_names() == ["snapshots"]


def test_an_unreachable_postgres_is_named_in_a_sentence_without_its_password() -> None:
    with pytest.raises(LedgerError) as caught:
        open_ledger("postgresql+psycopg2://ann:hunter2@127.0.0.1:1/tracks")
    message = str(caught.value)
    assert message.startswith("Cannot open the ledger at postgresql://127.0.0.1:1/tracks: ")
    assert "TRACKS_POSTGRES_URL" in message
    assert "hunter2" not in message
    assert "\n" not in message


def test_a_postgres_without_the_database_says_so(postgres_url: str) -> None:
    url = postgres_url.replace("/tracks_", "/no_tracks_")
    with pytest.raises(
        LedgerError, match=r"database \"no_tracks_.*\" does not exist; correct TRACKS_POSTGRES_URL"
    ):
        open_ledger(url)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense", "cannot be read; write sqlite:///PATH or postgresql"),
        ("postgresql+psycopg2://host:port/x", "cannot be read"),
        ("sqlite://", "needs a file"),
        ("sqlite:////no/such/folder/ledger.db", "folder does not exist"),
        ("mysql://localhost/x", "cannot live in 'mysql'"),
    ],
)
def test_a_url_that_names_no_ledger_is_refused(url: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        open_ledger(url)


def test_a_file_that_is_not_a_database_is_named_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.write_text("this is not a database, but it is long enough to be taken for one " * 20)
    with pytest.raises(
        LedgerError, match=r"ledger\.db: file is not a database; move the file away"
    ):
        open_ledger(f"sqlite:///{path}")


def test_an_embedded_ledger_lets_readers_read_while_one_writes(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = open_ledger(f"sqlite:///{path}")
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("begin immediate")
    try:
        assert ledger.cursor("runs/r-1") is None
        assert writer.execute("pragma journal_mode").fetchone() == ("wal",)
    finally:
        writer.execute("rollback")
        writer.close()


def test_the_seven_day_query_reads_the_covering_index_alone(tmp_path: Path) -> None:
    ledger = open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    [plan] = ledger.query(
        "explain query plan select termination_reason, gpu_seconds from training_attempts "
        "where model_family = 'reasoning' and started_at >= '2026-01-01'"
    )
    assert "COVERING INDEX ix_training_attempts_cost_by_reason" in plan["detail"]


def test_a_new_file_that_another_process_writes_is_waited_for(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    other = sqlite3.connect(
        tmp_path / "ledger.sqlite", isolation_level=None, check_same_thread=False
    )
    other.execute("CREATE TABLE another_process_was_first (at TEXT)")
    other.execute("BEGIN IMMEDIATE")  # what SQLite calls locked at once, whatever the time-out
    release = threading.Timer(0.3, other.close)
    release.start()
    try:
        assert len(open_ledger(url).dump()) == len(metadata.tables)
    finally:
        release.join(PROCESS_S_MAX)
