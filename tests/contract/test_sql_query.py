"""`tracks sql` over SQLite and a real Postgres: the same text, the same answer, and no way to write."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest

from tests.contract.conftest import NewUrl
from tests.fakes import FakeObjectStore
from tests.histories import History
from tests.random_histories import random_dataset, random_run
from tracks_dagster.ledger.effects.database import open_ledger, sql_query
from tracks_dagster.ledger.effects.database.sql_allowed import CELLS_MAX, parse_select
from tracks_dagster.ledger.effects.database.sql_query import run_sql
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.track.errors import InvalidInput, LedgerError

SEVEN_DAYS = """
    select termination_reason, count(*) as attempts, sum(gpu_seconds) / 3600 as gpu_hours
    from training_attempts
    where model_family = 'reasoning' and started_at >= now() - interval '7 days'
    group by termination_reason order by gpu_hours desc;
"""


@pytest.fixture
def sqlite_url(new_url: NewUrl) -> str:
    return new_url("sqlite")


@pytest.fixture(scope="module")
def alike(new_url: NewUrl) -> tuple[str, str]:
    """The URLs of a SQLite and a Postgres ledger of the same tracks, for tests that only read."""
    store, (sqlite, postgres) = FakeObjectStore(), (new_url("sqlite"), new_url("postgres"))
    histories = [random_run(Random(seed), f"r-{seed:02d}") for seed in range(6)]
    for url in (sqlite, postgres):
        fill(url, histories, store)
    return sqlite, postgres


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest, new_url: NewUrl) -> str:
    """The URL of a ledger that has taken nothing in, for tests that only read."""
    url = new_url(request.param)
    open_ledger(url)
    return url


def fill(url: str, histories: list[History], store: FakeObjectStore) -> None:
    for history in histories:
        history.write_to(store)
    random_dataset(Random(1)).write_to(store)
    Projector(store, open_ledger(url)).scan()


def ended_run(run_id: str, reason: str, *, ago: timedelta, device_seconds: float) -> History:
    """A run of the family `reasoning` with one attempt that ended so long ago."""
    history = History(run_id, begin=datetime.now(UTC) - ago).declare(model_family="reasoning")
    history.open().place().restore().commit(10)
    return history.end(reason, last_step=13, device_seconds=device_seconds)


def reasoning_runs() -> list[History]:
    day = timedelta(days=1)
    return [
        ended_run("r-1", "preempted", ago=1 * day, device_seconds=3600.0),
        ended_run("r-2", "preempted", ago=6 * day, device_seconds=1800.0),
        ended_run("r-3", "gpu_oom", ago=2 * day, device_seconds=7200.0),
        ended_run("r-4", "gpu_oom", ago=8 * day, device_seconds=7200.0),  # too long ago
        *(random_run(Random(seed), f"other-{seed}") for seed in range(5)),
    ]


def test_the_cost_of_the_last_seven_days_by_reason_runs_as_it_stands(
    ledger_url: str, store: FakeObjectStore
) -> None:
    fill(ledger_url, reasoning_runs(), store)
    assert run_sql(ledger_url, SEVEN_DAYS) == (
        ["termination_reason", "attempts", "gpu_hours"],
        [("gpu_oom", 1, 2.0), ("preempted", 2, 1.5)],
    )


@pytest.mark.parametrize(
    "query",
    [
        "select * from training_runs order by run_id",
        "select * from training_attempts order by run_id, attempt_id",
        "select * from checkpoints order by run_id, attempt_id, step",
        "select * from evals order by run_id, eval_id, number",
        "select * from promotions order by run_id, seq",
        "select * from notes order by run_id, seq",
        "select * from datasets",
        "select * from snapshots order by committed_at",
        "select track, seq from track_cursors order by track",
        "select count(*) as n from training_attempts",
        "select max(ended_at) as m, bool_or(first_line_ran) as b, sum(kept_steps) as k from "
        "training_attempts",
        "select run_id, a.attempt_id, c.step from training_attempts a join checkpoints c "
        "using (run_id) where c.attempt_id = a.attempt_id order by run_id, c.step",
        "with lost as (select run_id, sum(lost_steps) as n from training_attempts group by 1) "
        "select state, n from lost join training_runs using (run_id) order by run_id",
        "select run_id from training_runs where intent like '%run%' order by 1; -- ends; here",
        "select stop_cause from training_runs order by stop_cause desc, run_id limit 4",
        "select run_id, final_step from training_runs order by final_step, run_id",
        "select a, row_number() over (order by a desc) as n from (values (1), (null), (2)) t(a) "
        "order by a desc",
        "select date_trunc('day', declared_at) as d, count(*) as n from training_runs "
        "group by 1 order by 1",
        # whatever compares and orders: nothing is left out before DuckDB has looked at it
        f"select count(*) as n from notes where {' and '.join(f'seq >= -{n}' for n in range(1100))}",
        "select run_id, seq from notes where seq between 1 and 1e300 order by run_id, seq",
        "select run_id, finished_at from training_runs order by finished_at, run_id limit 3 offset 1",
        "select run_id from training_runs order by finished_at desc, max_steps nulls first, 1 limit 3",
    ],
)
def test_sqlite_and_postgres_answer_alike(query: str, alike: tuple[str, str]) -> None:
    in_sqlite, in_postgres = (run_sql(url, query) for url in alike)
    assert in_sqlite[1]
    assert in_sqlite == in_postgres


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select 1; select 2", "one SELECT and changes nothing; got: SELECT, SELECT"),
        ("insert into notes values (1)", "got: INSERT"),
        ("delete from notes", "got: DELETE"),
        ("drop table notes", "got: DROP"),
        ("pragma database_list", "got: PRAGMA"),
        ("set lock_configuration = false", "got: SET"),
        ("install httpfs", "got: LOAD"),
        ("copy notes to 'notes.csv'", "got: COPY"),
        ("attach 'x.db'", "got: ATTACH"),
        ("set search_path = 'x'", "got: SET"),
        ("commit", "got: TRANSACTION"),
        ("", "got: nothing"),
        ("-- nothing at all", "got: nothing"),
        ("selec 1", 'The query cannot be read: syntax error at or near "selec"'),
        ("select 1; commit; delete from notes", "got: SELECT, TRANSACTION, DELETE"),
        (
            "select * from nope",
            "nope, which does not exist.*The ledger has the tables .*checkpoints, data.*the views att",
        ),
        ("select nope from notes", "nope.* notes has run_id, seq, kind, attempt_id, author, text"),
        ("select cast('x' as int)", "The query cannot be answered: .*'?x'?"),
        (f"select {'+'.join('1' * 600)} from notes", "an expression .* is nested too deeply"),
    ],
)
def test_what_is_not_one_select_over_the_ledger_is_refused(
    empty_url: str, query: str, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        run_sql(empty_url, query)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select * from read_text('{secret}')", "does not call read_text: .* psql"),
        ("select * from read_csv('{secret}')", "does not call read_csv"),
        ("select * from '{secret}'", "reads .*secret.csv, which does not exist in the ledger"),
        ("select * from glob('{folder}/*')", "does not call glob"),
        ("select getenv('HOME')", "does not call getenv"),
        ("select getvariable('x')", "does not call getvariable"),
        ("select current_setting('home_directory')", "does not call current_setting"),
        ("select * from duckdb_settings()", "does not call duckdb_settings"),
        ("select * from pragma_version()", "does not call pragma_version"),
        ("select * from query('select 1')", "does not call query"),
        ("select * from json_execute_serialized_sql('x')", "does not call json_execute_serialized"),
        ("select * from which_secret('x', 's3')", "does not call which_secret"),
        ("select write_log('x')", "does not call write_log"),
        ("show tables", "does not take SHOW_REF"),
        ("select * from information_schema.tables", "reads information_schema.tables"),
        ("select * from secret_of_this_process", "does not exist in the ledger"),
    ],
)
def test_an_embedded_query_reads_nothing_but_the_ledger(
    query: str, message: str, sqlite_url: str, tmp_path: Path
) -> None:
    secret_of_this_process = [1]
    secret = tmp_path / "secret.csv"
    secret.write_text("a,b\n1,2\n")
    open_ledger(sqlite_url)
    with pytest.raises(InvalidInput, match=message):
        run_sql(sqlite_url, query.format(secret=secret, folder=tmp_path))
    assert secret_of_this_process


@pytest.mark.parametrize(
    "query",
    [
        "select * from notes where author = cast('1.2.3.4' as inet)",  # SQLite might check that
        "select cast('1.2.3.4' as inet)",
        "select * from sqlite_scan('x.db', 'notes')",
    ],
)
def test_an_embedded_query_installs_no_extension(
    query: str, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    open_ledger(sqlite_url)
    with pytest.raises(InvalidInput, match=r"casts to no inet|does not call sqlite_scan"):
        run_sql(sqlite_url, query)
    assert list(home.iterdir()) == []


def test_an_embedded_answer_that_memory_should_not_hold_is_refused(sqlite_url: str) -> None:
    open_ledger(sqlite_url)
    many = CELLS_MAX // 2
    assert run_sql(sqlite_url, f"select count(*) as n from range({many})") == (["n"], [(many,)])
    with pytest.raises(InvalidInput, match=r"more than 3,333,333 rows of 3 columns; .*limit"):
        run_sql(sqlite_url, f"select range as a, range as a, 1 as c from range({many})")


def test_an_error_of_an_embedded_query_is_reported_also_while_its_rows_come(
    sqlite_url: str,
) -> None:
    open_ledger(sqlite_url)
    number = "if(range = 400000, cast('x' || range as int), 1)"
    with pytest.raises(InvalidInput, match=r"cannot be answered: Could not convert .*'x400000'"):
        run_sql(sqlite_url, f"select {number} from range(500000)")


def test_an_embedded_query_ends_in_time_also_while_its_rows_come(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_query, "READ_S_MAX", 0.5)
    monkeypatch.setattr(sql_query, "BATCH_ROWS", 2048)
    open_ledger(sqlite_url)
    with pytest.raises(InvalidInput, match=r"took longer than"):
        run_sql(sqlite_url, "select length(repeat('x', 100000) || range) from range(9000000)")


def test_columns_of_one_name_keep_it(empty_url: str) -> None:
    query = "select 1 as a, 2 as a, 3 as b order by 1"
    assert run_sql(empty_url, query) == (["a", "a", "b"], [(1, 2, 3)])


def test_numbers_that_json_cannot_say_come_as_text(postgres_url: str) -> None:
    open_ledger(postgres_url)
    _, rows = run_sql(postgres_url, "select 'Infinity'::numeric, 'NaN'::numeric, 1.50::numeric")
    assert rows == [("Infinity", "NaN", 1.5)]


def test_a_ledger_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"no\.db.*`tracks reindex` rebuilds it"):
        run_sql(f"sqlite:///{tmp_path / 'no.db'}", "select * from notes")
    assert list(tmp_path.iterdir()) == []


def test_a_column_that_begins_with_thousands_of_nulls_keeps_its_type(
    sqlite_url: str, store: FakeObjectStore
) -> None:
    many = History("r-1").declare()
    for _ in range(3000):
        many.note()
    many.note("of attempt 1", attempt_id=1)
    fill(sqlite_url, [many], store)
    query = "select max(attempt_id), typeof(max(attempt_id)), max(noted_at) from notes"
    _, rows = run_sql(sqlite_url, query)
    assert rows == [(1, "BIGINT", many.records[-1].at)]


@pytest.mark.parametrize(
    ("query", "read"),
    [
        ("select count(*) from notes", {"notes": 1}),
        ("select n.author, seq from notes n where text like '%x%'", {"notes": 3}),
        ("select * from notes", {"notes": 12}),
        ("select n.* from notes n", {"notes": 12}),
        ("from notes", {"notes": 12}),
        ("select n from notes n", {"notes": 12}),
        ("select a from notes n(a, b)", {"notes": 12}),
        ("select #2 from notes", {"notes": 12}),
        ("select columns('_json$') from notes", {"notes": 12}),
        ("select 1 from notes natural join datasets", {"notes": 12, "datasets": 6}),
        ("select (select max(seq) from notes)", {"notes": 1}),
        ("with x as (select Seq, AUTHOR from NOTES) select 1 from x", {"notes": 2}),
        ("select 1", {}),
    ],
)
def test_only_the_columns_that_a_query_may_read_are_read(query: str, read: dict[str, int]) -> None:
    select = parse_select(query)
    assert {table.name: len(select.columns(table)) for table in select.tables} == read
