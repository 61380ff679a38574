"""One suite over both ledgers: SQLite and a real Postgres."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from random import Random
from typing import Any

import pytest

from tests.contract.conftest import NewUrl
from tests.fakes import FakeObjectStore
from tests.random_histories import random_dataset, random_run
from tests.seeds import fresh_seeds
from tracks_dagster.ledger.effects.database import open_ledger
from tracks_dagster.ledger.effects.database.sql_ledger import SqlLedger
from tracks_dagster.ledger.effects.database.tables import metadata
from tracks_dagster.ledger.effects.projector import Projector, Reindexed
from tracks_dagster.ledger.ports import Cursor
from tracks_dagster.ledger.track_states import dataset_rows, run_rows
from tracks_dagster.track.errors import LedgerError, RowRefused


def cursor(seq: int) -> Cursor:
    return Cursor(seq=seq, sha256=f"{seq:064x}")


def project_at_once(ledger: SqlLedger, *, seed: int) -> dict[str, list[dict[str, Any]]]:
    """Apply a random run and a random dataset; return what a dump of the ledger has to be."""
    run, dataset = random_run(Random(seed)), random_dataset(Random(seed))
    rows = {**run_rows(run.state), **dataset_rows(dataset.state)}
    assert ledger.apply(run.name, expected=None, advanced=cursor(3), rows=rows)
    expected: dict[str, list[dict[str, Any]]] = {name: [] for name in metadata.tables}
    for name, table_rows in rows.items():
        keys = [column.name for column in metadata.tables[name].primary_key]
        unique = {tuple(row[key] for key in keys): dict(row) for row in table_rows}
        expected[name] = [unique[key] for key in sorted(unique)]
    expected["track_cursors"] = [{"track": run.name, "seq": 3, "sha256": cursor(3).sha256}]
    return expected


def test_an_empty_ledger_knows_no_track(ledger: SqlLedger) -> None:
    assert ledger.cursor("runs/r-1") is None
    assert all(rows == [] for rows in ledger.dump().values())


@pytest.mark.parametrize("seed", range(2))
def test_rows_are_read_back_as_they_were_written(ledger: SqlLedger, seed: int) -> None:
    assert project_at_once(ledger, seed=seed) == ledger.dump()


def test_every_column_of_every_table_is_projected() -> None:
    for seed in range(40):
        run, dataset = random_run(Random(seed)), random_dataset(Random(seed))
        for name, rows in {**run_rows(run.state), **dataset_rows(dataset.state)}.items():
            for row in rows:
                assert sorted(row) == sorted(c.name for c in metadata.tables[name].columns)


def test_applying_the_same_rows_again_changes_nothing(ledger: SqlLedger) -> None:
    rows = run_rows(random_run(Random(5)).state)
    ledger.apply("runs/r-1", expected=None, advanced=cursor(3), rows=rows)
    before = ledger.dump()
    assert ledger.apply("runs/r-1", expected=cursor(3), advanced=cursor(3), rows=rows)
    assert ledger.dump() == before


@pytest.mark.parametrize("expected", [None, cursor(2), Cursor(seq=3, sha256="0" * 64)])
def test_a_cursor_that_stands_elsewhere_is_not_moved_and_nothing_is_written(
    ledger: SqlLedger, expected: Cursor | None
) -> None:
    ledger.apply("runs/r-1", expected=None, advanced=cursor(3), rows={})
    before = ledger.dump()
    rows = run_rows(random_run(Random(5)).state)
    assert not ledger.apply("runs/r-1", expected=expected, advanced=cursor(9), rows=rows)
    assert ledger.dump() == before


def test_a_cursor_that_is_not_there_is_not_moved(ledger: SqlLedger) -> None:
    assert not ledger.apply("runs/r-1", expected=cursor(1), advanced=cursor(2), rows={})
    assert ledger.cursor("runs/r-1") is None


def test_a_row_that_cannot_be_written_leaves_the_cursor_where_it_was(ledger: SqlLedger) -> None:
    rows = {"notes": [{"run_id": "r-1", "seq": 4, "kind": None}]}
    with pytest.raises(LedgerError, match="Cannot project runs/r-1 into the ledger"):
        ledger.apply("runs/r-1", expected=None, advanced=cursor(4), rows=rows)
    assert ledger.cursor("runs/r-1") is None
    assert ledger.dump()["notes"] == []


def test_forget_removes_every_row_of_one_track_and_a_reindex_those_of_none(
    ledger: SqlLedger, store: FakeObjectStore
) -> None:
    project_at_once(ledger, seed=2)
    dataset = random_dataset(Random(2))
    ledger.apply(dataset.name, expected=None, advanced=cursor(1), rows=dataset_rows(dataset.state))
    ledger.forget("runs/r-1")
    left = {name for name, rows in ledger.dump().items() if rows}
    assert left == {"datasets", "track_cursors"}
    dataset.write_to(store)
    Projector(store, ledger).reindex(forgets_lost=True)
    held = ledger.dump()
    assert held["datasets"]
    run = random_run(Random(2))
    ledger.apply("runs/other", expected=None, advanced=cursor(1), rows=run_rows(run.state))
    ledger.forget("runs/other")  # its rows are those of runs/r-1
    assert ledger.dump() != held
    Projector(store, ledger).reindex()
    assert ledger.dump() == held


@pytest.mark.parametrize(
    "value", [2**63, "\udce9", "\0", None], ids=["large", "half a surrogate", "NUL", "none"]
)
def test_a_value_that_no_database_takes_is_distinguished_from_a_database_that_is_away(
    value: Any, ledger: SqlLedger, request: pytest.FixtureRequest
) -> None:
    row = dict.fromkeys(("track", "kind", "author", "text", "words"), "x")
    row |= {"seq": 0, "attempt_id": 1, "said_at": datetime(2026, 1, 31, tzinfo=UTC)}
    column = "attempt_id" if isinstance(value, int) else "text"
    rows = {"texts": [row | {"run_id": "r-1", column: value}]}
    if value == "\0" and "sqlite" in request.node.name:
        pytest.skip("SQLite takes NUL")
    with pytest.raises(RowRefused):
        ledger.apply("runs/r-1", expected=None, advanced=cursor(1), rows=rows)
    assert ledger.cursor("runs/r-1") is None


def test_a_query_gives_times_truths_and_sums_the_same_way(ledger: SqlLedger) -> None:
    run = random_run(Random(3))
    ledger.apply(run.name, expected=None, advanced=cursor(3), rows=run_rows(run.state))
    [row] = ledger.query(
        "select declared_at, git_dirty, sum(ranks) as ranks from training_runs "
        "where run_id = :run_id group by declared_at, git_dirty",
        {"run_id": "r-1"},
    )
    assert row == {"declared_at": run.state.declared_at, "git_dirty": False, "ranks": 2}
    assert type(row["ranks"]) is int


@pytest.mark.parametrize(
    "sql", ["delete from notes", "insert into track_cursors values ('x', 1, 'y')"]
)
def test_a_query_cannot_write(ledger: SqlLedger, sql: str) -> None:
    with pytest.raises(LedgerError, match="Cannot read the ledger at"):
        ledger.query(sql)


def test_a_query_takes_a_time_in_any_zone_and_no_naive_one(ledger: SqlLedger) -> None:
    run = random_run(Random(5))
    ledger.apply("runs/r-1", expected=None, advanced=cursor(3), rows=run_rows(run.state))
    sql = "select run_id from training_runs where declared_at > :at"
    [row] = ledger.query("select declared_at from training_runs")
    declared_at = row["declared_at"].astimezone(timezone(timedelta(hours=9)))
    found = [
        len(ledger.query(sql, {"at": declared_at + timedelta(microseconds=by)})) for by in (-1, 0)
    ]
    assert found == [1, 0]
    with pytest.raises(ValueError, match="no time zone"):
        ledger.query(sql, {"at": datetime(2026, 1, 1)})  # noqa: DTZ001  # what is refused


def test_a_text_with_a_nul_is_projected(ledger: SqlLedger) -> None:
    run = random_run(Random(0), records_max=1).note("before\0after")
    ledger.apply(run.name, expected=None, advanced=cursor(1), rows=run_rows(run.state))
    assert ledger.query("select text from notes") == [{"text": "before\ufffdafter"}]


def test_a_ledger_that_was_lost_is_rebuilt_equal(ledger: SqlLedger, store: FakeObjectStore) -> None:
    check_rebuilt(ledger, store, seed=0)


@pytest.mark.full
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_ledgers_of_fresh_histories_are_read_back_and_rebuilt_equal(
    database: str, new_url: NewUrl
) -> None:
    for seed in fresh_seeds(10):
        ledger = open_ledger(new_url(database))
        assert project_at_once(ledger, seed=seed) == ledger.dump()
        check_rebuilt(open_ledger(new_url(database)), FakeObjectStore(), seed=seed)


def check_rebuilt(ledger: SqlLedger, store: FakeObjectStore, *, seed: int) -> None:
    histories = [
        *(random_run(Random(seed * 100 + n), f"r-{n}") for n in range(4)),
        random_dataset(Random(seed), "text"),
    ]
    projector = Projector(store, ledger)
    for history in histories:
        for count in range(0, len(history.records) + 1, 3):
            history.write_to(store, count=count)
            projector.project(history.name)
        history.write_to(store)
        projector.project(history.name)
    grown = ledger.dump()

    assert Projector(store, ledger).reindex() == Reindexed(track_count=5, problems=())

    assert ledger.dump() == grown
