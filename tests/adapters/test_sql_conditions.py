"""What SQLite checks for DuckDB leaves the answer as it is, whatever the query looks like."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pytest
import sqlalchemy as sa

from tracks_dagster.ledger.effects.database import open_ledger
from tracks_dagster.ledger.effects.database.column_types import UtcTime
from tracks_dagster.ledger.effects.database.tables import metadata
from tracks_dagster.ledger.effects.sql.embedded_sql import _filters, run_embedded
from tracks_dagster.ledger.effects.sql.sql_conditions import CONDITIONS_MAX, as_sqlite
from tracks_dagster.ledger.effects.sql.sql_parse import parse_select
from tracks_dagster.track.records import format_time

RUNS = metadata.tables["training_runs"]
NOW = datetime.now(UTC).replace(microsecond=0)

# Values of each type: few, so that they meet; with those that are compared oddly somewhere.
STORED: dict[type[Any], list[Any]] = {
    sa.Text: ["", "a", "A", "b", "ä", "a ", "it's", "10", "9"],
    sa.BigInteger: [-1, 0, 1, 9, 10, 2**53, 2**53 + 1],
    sa.Double: [-1.5, 0.0, 0.1, 1.0, 1.5, 1e300, 9007199254740993.0],
    sa.Boolean: [True, False],
    UtcTime: [
        NOW - timedelta(days=8),
        NOW - timedelta(days=7, hours=-12),  # no moment of these tests passes it
        NOW,
        datetime(2026, 1, 31, tzinfo=UTC),
        datetime(2026, 1, 31, microsecond=1, tzinfo=UTC),
        datetime(1999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    ],
}
VALUES = {
    "text": ["'a'", "'b'", "'A'", "'ä'", "'it''s'", "''", "'10'", "null", "9", "cast('a' as text)"],
    "number": ["1", "-1", "1.5", "1e0", "9", "'9'", "2 + 7", "null", "9007199254740993", "1e300"],
    "time": [
        "now() - interval '7 days'",
        "now() - interval 8 days",
        "current_date - 7",
        "current_timestamp",
        "'2026-01-31'",
        "'2026-01-31 00:00:00.000001'",
        "'2026-01-31T01:00:00+01:00'",
        "date '2026-01-31'",
        "timestamp '2026-01-31 00:00:00'",
        "timestamptz '2026-01-31 00:00:00+02'",
        "date_trunc('day', now())",
        "'infinity'",
        "cast('no time' as timestamptz)",
    ],
}
COLUMNS = {
    "text": ["run_id", "owner", "git_commit", "state"],
    "number": ["ranks", "max_steps", "final_step", "estimated_device_s", "device_seconds"],
    "time": ["declared_at", "finished_at"],
}
SHAPES = [
    *["select {columns} from training_runs where {where}"] * 6,
    "select owner, count(*), sum(ranks), min(declared_at) from training_runs where {where} group by 1",
    "select {columns} from training_runs as t where {where} and t.owner >= 'a'",
    "select *, state as owner from training_runs where {where}",
    "select state as owner, owner as state from training_runs where {where}",
    "select a.run_id from training_runs a left join training_runs b on a.owner = b.owner where {b}",
    "select a.owner, b.ranks from training_runs a, training_runs b where {a} and a.ranks = b.ranks",
    "select owner from training_runs where {where} union all select state from training_runs",
    "with training_runs as (select 'a' as owner, * exclude (owner) from training_runs) "
    "select {columns} from training_runs where owner = 'a' and ranks > 0",
    "select run_id, (select count(*) from training_runs) from training_runs where {where}",
    "select count(*) from (select * from training_runs where {where})",
    "select run_id, row_number() over (partition by owner order by run_id) from training_runs "
    "where {where}",
    "select b, count(*) from training_runs as t(a, b) where {where} group by 1",
]


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger of 150 runs with any values at all."""
    rng = Random(0)
    file = tmp_path_factory.mktemp("ledger") / "ledger.db"
    open_ledger(f"sqlite:///{file}")
    engine = sa.create_engine(f"sqlite:///{file}")
    rows = [{c.name: stored(rng, c) for c in RUNS.c} | {"run_id": f"r-{i}"} for i in range(150)]
    with engine.begin() as connection:
        connection.execute(sa.insert(RUNS), rows)
    engine.dispose()
    return file


def stored(rng: Random, column: sa.Column[Any]) -> Any:
    if column.nullable and rng.random() < 0.3:
        return None
    return rng.choice(STORED[type(column.type)])


def comparison(rng: Random, row: str = "") -> str:
    kind = rng.choice(list(COLUMNS))
    column, values = row + rng.choice(COLUMNS[kind]), VALUES[kind]
    value = rng.choice(values)
    match rng.randrange(12):
        case 0:
            return f"{column} between {value} and {rng.choice(values)}"
        case 1:
            return f"{value} <= {column}"
        case 2:
            return f"{column} is null"
        case 3:
            return f"not ({column} = {value})"
        case 4 | 5 | 6:
            return f"({column} <= {value} or {comparison(rng, row)})"
        case _:
            return f"{column} {rng.choice(['=', '<', '<=', '>', '>=', '<>'])} {value}"


def query(rng: Random) -> str:
    def where(row: str = "") -> str:
        return " and ".join(comparison(rng, row) for _ in range(rng.randrange(1, 3)))

    columns = rng.choice(["run_id", "*", "owner, declared_at, ranks"])
    return rng.choice(SHAPES).format(columns=columns, where=where(), a=where("a."), b=where("b."))


def answer(ledger: Path, text: str, *, is_pushed: bool) -> list[str] | None:
    """Return the rows in some order; None where the query fails."""
    select = parse_select(text)
    try:
        table = run_embedded(
            ledger, select if is_pushed else replace(select, conditions=(), head=None)
        )
    except duckdb.Error:
        return None
    return sorted(map(repr, table.to_pylist()))


@pytest.mark.parametrize("seed", range(20))
def test_an_answer_is_the_same_with_fewer_rows_read(seed: int, ledger: Path) -> None:
    for text in (query(Random(f"{seed}-{i}")) for i in range(4)):
        expected = answer(ledger, text, is_pushed=False)
        if expected is not None:  # else a row failed that need not have been looked at
            assert answer(ledger, text, is_pushed=True) == expected, text


def pushed(text: str) -> list[str]:
    """Return what SQLite checks."""
    with closing(duckdb.connect()) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        told = [as_sqlite(connection, condition) for condition in parse_select(text).conditions]
    return [each for each in told if each is not None]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("owner = 'ann'", ["\"owner\" = 'ann'"]),
        ("'it''s' > Owner", ["\"owner\" < 'it''s'"]),
        ("training_runs.ranks between 2 and 4", ['"ranks" >= 2 and "ranks" <= 4']),
        ("ranks between 2 and 1e300", []),  # both sides are compared as floats
        ("ranks between 2 and null", []),
        ("state in ('a', 'b') and ranks = 1", ['"ranks" = 1']),
        ("declared_at >= '2026-01-31'", ["\"declared_at\" >= '2026-01-31T00:00:00.000000Z'"]),
        (
            "declared_at > timestamptz '2026-01-31 00:00:00+02' - interval '1 day'",
            ["\"declared_at\" > '2026-01-29T22:00:00.000000Z'"],
        ),
        ("ranks = 1.5", []),  # compared as decimals
        ("device_seconds < 1.5", []),
        ("owner = 5", []),  # compared as numbers
        ("owner = null", []),
        ("declared_at < 'infinity'", []),
        ("owner = 'a' or ranks = 1", []),
        ("not owner = 'a'", []),
        ("owner = state", []),
        ("owner = lower('A')", []),
        ("ranks > random()", []),
        ("owner = (select 'a')", []),
        ("owner = 'a' and ranks in (select ranks from training_runs)", []),
    ],
)
def test_only_comparisons_that_every_row_must_meet_are_checked_by_sqlite(
    where: str, expected: list[str]
) -> None:
    assert pushed(f"select * from training_runs where {where}") == expected


@pytest.mark.parametrize(
    "text",
    [
        "with training_runs as (select 'b' as owner) select * from training_runs where owner = 'a'",
        "select 1 from training_runs a left join training_runs b using (run_id) where b.owner = 'a'",
        "select 1 from training_runs t(owner) where owner = 'a'",
        "select state as owner from training_runs where owner = 'a'",
        "select * from training_runs tablesample 50% where owner = 'a'",
        "select * from training_runs where owner = 'a' using sample 3",
        "select 1 from training_runs where owner = 'a' union all select 2 from training_runs",
        "select * from (from training_runs) where owner = 'a'",
        "select * from run_time where run_id = 'a'",  # a view
    ],
)
def test_a_query_that_is_more_than_one_table_with_conditions_is_left_to_duckdb(text: str) -> None:
    assert pushed(text) == []


def test_now_is_the_same_moment_for_both() -> None:
    with closing(duckdb.connect()) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        select = parse_select("select count(*) from training_runs where declared_at <= now()")
        told = _filters(connection, select)
        time.sleep(0.01)  # the clock of a transaction stands still
        [(now,)] = connection.execute("select epoch_us(now())").fetchall()
    moment = format_time(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=now))
    assert told == {"training_runs": f"\"declared_at\" <= '{moment}'"}


@pytest.mark.parametrize("upper", ["1e300", "9223372036854775808"])
def test_both_bounds_of_between_are_compared_in_one_type(upper: str, ledger: Path) -> None:
    # With an upper bound that is no integer of SQLite's, 2^53 and 2^53 + 1 may be one number.
    text = f"select run_id from training_runs where ranks between 9007199254740993 and {upper}"
    assert answer(ledger, text, is_pushed=True) == answer(ledger, text, is_pushed=False)


@pytest.mark.parametrize("term", ["ranks >= -{}", "ranks between -{} and 2"])
def test_of_very_many_conditions_sqlite_checks_the_first(term: str, ledger: Path) -> None:
    where = " and ".join(term.format(n) for n in range(1100))  # one SQLite expression ends at 1000
    text = f"select count(*) from training_runs where {where}"
    assert len(pushed(text)) == CONDITIONS_MAX
    expected = answer(ledger, text, is_pushed=False)
    assert expected is not None
    assert answer(ledger, text, is_pushed=True) == expected


def test_a_value_that_cannot_be_computed_is_told_as_without_sqlite(ledger: Path) -> None:
    text = (
        "select * from training_runs where owner = 'a' and declared_at > cast('x' as timestamptz)"
    )
    for is_pushed in (True, False):
        select = parse_select(text)
        with pytest.raises(duckdb.ConversionException):
            run_embedded(ledger, select if is_pushed else replace(select, conditions=(), head=None))
