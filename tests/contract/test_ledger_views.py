"""The ledger's views tell the same account of time as the pure function, on SQLite and on Postgres."""

from __future__ import annotations

import functools
from datetime import datetime, timedelta
from random import Random
from typing import Any

import pytest
import sqlalchemy as sa

from tests.bodies import BEGIN
from tests.contract.conftest import NewUrl
from tests.histories import History
from tests.random_histories import random_run
from tests.timed_histories import timed_run
from tracks_dagster.ledger.effects.database import open_ledger
from tracks_dagster.ledger.effects.database.engine import make_engine
from tracks_dagster.ledger.effects.database.sql_ledger import SqlLedger
from tracks_dagster.ledger.effects.database.sql_query import run_sql
from tracks_dagster.ledger.effects.database.tables import views
from tracks_dagster.ledger.ledger_views import VIEWS, select_as_of
from tracks_dagster.ledger.ports import Cursor
from tracks_dagster.ledger.prices import Prices
from tracks_dagster.ledger.time_buckets import BUCKETS, HOLDING, RunTime, run_buckets
from tracks_dagster.ledger.timeline import micros
from tracks_dagster.ledger.track_states import run_rows
from tracks_dagster.review.effects.goodput import KEYS, read_goodput
from tracks_dagster.review.effects.slo import read_slo
from tracks_dagster.scheduling.effects.usage import read_shares
from tracks_dagster.scheduling.policy import SchedulingPolicy

RUNS = 24


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def full_url(request: pytest.FixtureRequest, new_url: NewUrl) -> str:
    """The URL of a ledger that holds `histories()`, for tests that only read."""
    url = new_url(request.param)
    filled(url, histories())
    return url


@functools.cache
def histories() -> list[History]:
    """Runs of every odd kind; a failure names the run, whose number is its seed."""
    odd = [timed_run(Random(n), f"r-{n:03d}", skewed=n % 2 == 1) for n in range(RUNS)]
    return [*odd, *(random_run(Random(n), f"any-{n:03d}") for n in range(RUNS // 4))]


def filled(url: str, runs: list[History]) -> SqlLedger:
    ledger = open_ledger(url)
    for run in runs:
        cursor = Cursor(seq=run.state.head.seq, sha256=run.state.head.sha256)
        ledger.apply(run.name, expected=None, advanced=cursor, rows=run_rows(run.state))
    return ledger


def as_of(
    ledger: SqlLedger, query: str, moment: datetime, since_us: int = 0
) -> list[dict[str, Any]]:
    parameters = {"as_of_us": micros(moment), "since_us": since_us}
    names = {name: value for name, value in parameters.items() if f":{name}" in select_as_of(query)}
    return ledger.query(select_as_of(query), names)


def close(value: float) -> Any:
    return pytest.approx(value, rel=1e-9, abs=1e-6)


def test_every_attempt_has_the_seconds_that_the_pure_account_tells(full_url: str) -> None:
    runs = histories()
    ledger = open_ledger(full_url)
    for moment in (BEGIN + timedelta(minutes=m) for m in (-1, 0, 9, 31, 77, 200, 10_000)):
        result = as_of(ledger, "select * from attempt_time order by run_id, attempt_id", moment)
        found = {(row["run_id"], row["attempt_id"]): row for row in result}
        for run in runs:
            for attempt in run_buckets(run.state, as_of=moment).attempts:
                row = found.pop((run.run_id, attempt.attempt_id))
                why = f"{run.run_id}/{attempt.attempt_id} at {moment}"
                assert row["reason"] == attempt.reason, why
                assert row["idle_s"] == close(attempt.idle_s), why
                steps = (row["kept_steps"], row["lost_steps"])
                assert steps == (attempt.kept_steps, attempt.lost_steps), why
                for bucket in BUCKETS:
                    if bucket != "idle":
                        assert row[f"{bucket}_s"] == close(attempt.seconds[bucket]), (why, bucket)
                for bucket in HOLDING:
                    device_s = attempt.device_seconds[bucket]
                    assert row[f"{bucket}_device_s"] == close(device_s), (why, bucket)
                assert row["device_s"] == close(sum(attempt.device_seconds.values())), why
        assert not found


def test_every_run_has_the_seconds_that_the_pure_account_tells(full_url: str) -> None:
    runs = histories()
    ledger = open_ledger(full_url)
    for moment in (
        BEGIN - timedelta(hours=1),
        BEGIN + timedelta(minutes=40),
        BEGIN.replace(year=2027),
    ):
        result = {row["run_id"]: row for row in as_of(ledger, "select * from run_time", moment)}
        for run in runs:
            account = run_buckets(run.state, as_of=moment)
            if moment < BEGIN:
                assert run.run_id not in result
                continue
            row = result[run.run_id]
            assert row["wall_s"] == close(account.wall_s)
            for bucket, seconds in account.seconds.items():
                assert row[f"{bucket}_s"] == close(seconds), (run.run_id, bucket)
            held_s = sum(account.seconds[b] for b in HOLDING) - _waits(account)
            assert row["held_s"] == close(held_s)
            if account.wall_s > 0:
                assert row["ettr_wall"] == close(account.seconds["step_kept"] / account.wall_s)
            if sum(account.device_seconds.values()) > 0:
                kept = account.device_seconds["step_kept"]
                assert row["gpu_goodput"] == close(kept / sum(account.device_seconds.values()))


def _waits(account: RunTime) -> float:
    """Seconds of detection that held no devices."""
    return sum(
        a.seconds["detection"] - a.device_seconds["detection"] / a.devices for a in account.attempts
    )


def test_the_views_stand_as_of_now_and_tracks_sql_reads_them(ledger_url: str) -> None:
    long_ago = BEGIN.replace(year=2020)
    runs = [timed_run(Random(n), f"r-{n:03d}", begin=long_ago) for n in range(12)]
    runs = [run for run in runs if run.state.finished]
    filled(ledger_url, runs)
    columns, rows = run_sql(
        ledger_url,
        "select run_id, wall_s, sum(t.step_kept_s) / wall_s as kept from run_time r "
        "join attempt_time t using (run_id) group by run_id, wall_s order by run_id",
    )
    assert columns == ["run_id", "wall_s", "kept"]
    accounts = [run_buckets(run.state, as_of=BEGIN) for run in runs if run.state.attempts]
    assert rows == [
        (each.run_id, close(each.wall_s), close(each.seconds["step_kept"] / each.wall_s))
        for each in accounts
    ]


def test_every_view_has_the_columns_and_types_that_tracks_sql_takes_it_to_have(
    full_url: str,
) -> None:
    for name in VIEWS:
        table = views.tables[name]
        columns, rows = run_sql(full_url, f"select * from {name}")
        assert columns == list(table.columns.keys())
        assert rows or name == "eval_lag"
        for row in rows:
            for column, value in zip(table.columns, row, strict=True):
                known = {"TEXT": str, "DOUBLE": (int, float), "BIGINT": int}[str(column.type)]
                assert value is None or isinstance(value, known), (name, column.name, value)
    with make_engine(full_url).connect() as connection:
        assert sorted(sa.inspect(connection).get_view_names()) == sorted(VIEWS)


def test_only_runs_that_did_something_since_then_are_looked_at(ledger_url: str) -> None:
    seed = next(n for n in range(99) if is_done(timed_run(Random(n))))
    early = timed_run(Random(seed), "early", begin=BEGIN.replace(year=2020))
    ledger = filled(ledger_url, [early, timed_run(Random(seed), "late")])
    late = BEGIN.replace(year=2027)
    result = as_of(ledger, "select distinct run_id from attempt_time", late, micros(BEGIN))
    assert [row["run_id"] for row in result] == ["late"]


def test_the_account_of_goodput_sums_what_the_pure_accounts_tell(full_url: str) -> None:
    runs = histories()
    ledger = open_ledger(full_url)
    moment = BEGIN + timedelta(hours=2)
    accounts = [run_buckets(run.state, as_of=moment) for run in runs]
    prices = Prices(currency="USD", per_device_hour={"cpu": 2.0, "h100": 3.0})
    for by in KEYS:
        result = read_goodput(ledger, as_of=moment, by=by, prices=prices).total
        for bucket in BUCKETS:
            seconds = sum(a.seconds[bucket] for a in accounts if a.attempts)
            assert result.seconds[bucket] == close(seconds), (by, bucket)
        hours = sum(sum(a.device_seconds.values()) for a in accounts) / 3600
        assert result.total_hours == close(hours)
        assert result.cost == close(2.0 * hours)
    last = read_goodput(ledger, as_of=moment, last=timedelta(minutes=30), family="gpt")
    assert 0 < last.total.attempts < sum(len(a.attempts) for a in accounts)


def is_done(run: History) -> bool:
    return run.state.finished is not None and len(run.state.attempts) > 0


def test_the_waits_of_a_class_are_those_that_the_pure_account_tells(full_url: str) -> None:
    moment, ledger = BEGIN + timedelta(minutes=10_000), open_ledger(full_url)
    policy = SchedulingPolicy()  # its single has to start within 8 hours
    found: list[float] = []
    for run in histories():
        account = run_buckets(run.state, as_of=moment)
        for attempt, state in zip(account.attempts, run.state.attempts, strict=True):
            waits_s, is_over = attempt.seconds["queue"], bool(state.ended or state.placed)
            found += [waits_s] if is_over or waits_s > 8 * 3600 else []
    found.sort()
    report = read_slo(ledger, policy, as_of=moment, last=timedelta(days=3650))
    [waits] = [e.waits for e in report.judged if (e.workload_class, e.wait) == ("single", "queue")]
    assert waits is not None
    assert (waits.count, waits.longest_s) == (len(found), close(found[-1]))
    assert waits.p95_s == close(found[(95 * len(found) + 99) // 100 - 1])
    shares = read_shares(ledger, now=moment, half_life_s=3600.0)
    assert shares.keys() == {run.state.declared.team for run in histories() if run.state.attempts}
