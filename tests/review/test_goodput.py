"""What failures cost and how fast runs came back, counted over a ledger of known runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.bodies import BEGIN, placed
from tests.fakes import FakeObjectStore
from tests.histories import History
from tracks_dagster.ledger.effects.database import open_ledger
from tracks_dagster.ledger.effects.database.sql_ledger import SqlLedger
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.prices import Prices
from tracks_dagster.review.effects.goodput import GROUPS_MAX, read_goodput
from tracks_dagster.review.effects.goodput_text import format_goodput
from tracks_dagster.track.bodies import ComputeRequest, Debit, TimeSpent
from tracks_dagster.track.records import format_time

HOUR = timedelta(hours=1)
LATER = BEGIN + timedelta(days=365)
Fill = Callable[..., SqlLedger]


@pytest.fixture
def fill(tmp_path: Path, store: FakeObjectStore) -> Fill:
    """Project these runs into a ledger."""

    def filled(*runs: History) -> SqlLedger:
        for run in runs:
            run.write_to(store)
        ledger = open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
        Projector(store, ledger).scan()
        return ledger

    return filled


def attempt(
    run: History,
    reason: str,
    *,
    hours: float = 1.0,
    steps: int = 10,
    commits: bool = True,
    fingerprint: str | None = None,
    cause: str | None = None,
    excluded: tuple[str, ...] = (),
) -> History:
    """One attempt without a wait, that steps all of its time; it commits its last step, or nothing."""
    compute = run.state.declared.compute
    changes = {"cause": cause} if cause else {}
    run.open(
        compute=replace(compute, excluded_nodes=excluded),
        debit=Debit(reason=reason, amount=1, fingerprint=None, why="by policy")
        if run.state.attempts
        else None,
        **changes,
    )
    started = run.at
    run.place(world_size=compute.ranks, ranks=placed("x").ranks[:1]).restore()
    last = run.state.attempts[-1].resumed_step + steps
    spent = TimeSpent(steps_s=hours * 3600 - 14.0)
    finished = started + timedelta(hours=hours)
    if commits:
        run.at = finished - timedelta(seconds=1)
        run.commit(last, spent=spent)
    run.at = finished
    run.end(
        reason,
        last_step=last,
        started_at=format_time(started),
        finished_at=format_time(finished),
        last_stepped_at=format_time(finished),
        fingerprint=fingerprint or f"{reason}:{len(run.state.attempts)}",
        spent=spent,
    )
    return run


def test_a_run_of_1024_devices_for_30_days_cost_737280_device_hours(fill: Fill) -> None:
    run = History("r-1").declare(compute=ComputeRequest(ranks=1024))
    result = read_goodput(fill(attempt(run, "completed", hours=720)), as_of=LATER)
    assert result.total.total_hours == pytest.approx(737_280.0)
    assert "737 280.0 device hours" in format_goodput(result)
    assert result.gpu_goodput == pytest.approx(1.0, abs=1e-3)


def test_35_manual_restarts_100_hosts_and_70_automatic_ones_are_counted(fill: Fill) -> None:
    run = attempt(History("opt").declare(), "node_failure", hours=0.1)
    for number in range(105):
        cause = "manual_retry" if number % 3 == 0 else "retry"
        hosts = (f"host-{number}",) if number < 100 else ()
        attempt(run, "node_failure", hours=0.1, cause=cause, excluded=hosts)
    result = read_goodput(fill(run), as_of=LATER).retrying
    assert (result.manual_restarts, result.hosts_cycled, result.automatic_restarts) == (35, 100, 70)
    text = format_goodput(read_goodput(fill(run), as_of=LATER))
    assert "restarts: 35 manual, 70 automatic; 100 hosts cycled" in text


def test_the_worst_waste_ranks_first(fill: Fill) -> None:
    run = History("r-1").declare()
    for reason in ("preempted", "code_error", "code_error", "preempted", "preempted"):
        attempt(run, reason, hours=0.2 if reason == "preempted" else 3.0, commits=False)
    result = read_goodput(fill(run), as_of=LATER)
    assert [group.name for group in result.groups] == ["code_error", "preempted"]
    worst = result.groups[0]
    assert (worst.attempts, worst.lost_steps) == (2, 20)
    assert worst.wasted_hours == pytest.approx(2 * 2 * 3.0, rel=1e-2)  # two devices, twice 3 h


def test_retries_that_kept_no_step_are_counted_and_those_that_failed_alike_apart(
    fill: Fill,
) -> None:
    run = attempt(History("r-1").declare(), "preempted")
    attempt(run, "gpu_oom", commits=False, fingerprint="oom:here")
    attempt(run, "gpu_oom", commits=False, fingerprint="oom:here")
    attempt(run, "completed")
    result = read_goodput(fill(run), as_of=LATER).retrying
    assert (result.dead, result.same_failure) == (2, 1)
    assert result.dead_hours == pytest.approx(4.0, rel=1e-2)
    assert result.same_failure_hours == pytest.approx(2.0, rel=1e-2)


def test_interruptions_leave_out_planned_drains_and_what_was_meant(fill: Fill) -> None:
    run = History("r-1").declare()
    for reason in ("preempted", "node_drained", "node_failure", "completed"):
        attempt(run, reason)
    result = read_goodput(fill(run), as_of=LATER).failing
    assert (result.interruptions, result.planned) == (2, 1)
    assert result.mtbi_s == pytest.approx(4 * 3600 / 2, rel=1e-3)
    assert result.detect_s == pytest.approx(0.0)
    # opened 7 s after the end, placed and restored 7 s later each
    assert result.mttr_s == pytest.approx(21.0)


def test_groups_by_family_team_week_and_run_hold_the_same_hours(fill: Fill) -> None:
    week = timedelta(days=7)
    runs = [
        attempt(
            History(f"r-{n}", begin=BEGIN + n * week).declare(
                model_family="gpt" if n else "tabular", team="a" if n < 2 else "b"
            ),
            "preempted",
        )
        for n in range(3)
    ]
    ledger = fill(*runs)
    expected = {
        "family": {"gpt": 4.0, "tabular": 2.0},
        "team": {"a": 4.0, "b": 2.0},
        "week": {"2026-01-26": 2.0, "2026-02-02": 2.0, "2026-02-09": 2.0},  # from their Mondays
        "run": {"r-0": 2.0, "r-1": 2.0, "r-2": 2.0},
    }
    for by, hours in expected.items():
        result = read_goodput(ledger, as_of=LATER, by=by)
        found = {group.name: round(group.total_hours, 2) for group in result.groups}
        assert found == hours, by
        assert result.total.total_hours == pytest.approx(6.0)
    assert read_goodput(ledger, as_of=LATER, family="tabular").total.attempts == 1


def test_only_attempts_that_ended_in_the_window_count(fill: Fill) -> None:
    run = attempt(History("r-1").declare(), "preempted")
    run.at += timedelta(days=10)
    attempt(run, "gpu_oom")
    result = read_goodput(fill(run), as_of=run.at + HOUR, last=timedelta(days=7))
    assert [group.name for group in result.groups] == ["gpu_oom"]
    assert result.runs == 1
    assert "that ended since 2026-02-03T" in format_goodput(result)


def test_as_of_a_time_nothing_that_came_later_is_reported(fill: Fill) -> None:
    run = attempt(History("r-1").declare(), "preempted")
    then: datetime = run.at - timedelta(seconds=1)
    attempt(run, "gpu_oom")
    result = read_goodput(fill(run), as_of=then)
    assert [(group.name, group.attempts) for group in result.groups] == [("preempted", 1)]
    assert result.retrying.dead == 0


def test_money_is_reported_where_a_price_is_there_and_never_guessed(fill: Fill) -> None:
    ledger = fill(attempt(History("r-1").declare(), "preempted", commits=False))
    none = read_goodput(ledger, as_of=LATER)
    assert none.total.cost is None
    assert "USD" not in format_goodput(none)
    by_class = read_goodput(ledger, as_of=LATER, prices=_prices(cpu=3.0))
    assert by_class.total.cost == pytest.approx(6.0)
    assert "6.00 USD" in format_goodput(by_class)
    other = read_goodput(ledger, as_of=LATER, prices=_prices(h100=3.0))
    assert other.total.cost is None
    assert other.total.unpriced_hours == pytest.approx(2.0)
    assert "device hours have no price" in format_goodput(other)


def _prices(**per_hour: float) -> Prices:
    return Prices(currency="USD", per_device_hour=per_hour)


def test_an_attempt_in_a_pool_with_a_price_of_its_own_costs_that(fill: Fill) -> None:
    on_spot = History("r-1").declare(compute=ComputeRequest(ranks=2, pool="spot"))
    ledger = fill(
        attempt(on_spot, "preempted", commits=False),
        attempt(History("r-2").declare(), "preempted", commits=False),
    )
    prices = replace(_prices(cpu=3.0), pools={"spot": {"cpu": 0.5}, "other": {"cpu": 9.0}})
    found = read_goodput(ledger, as_of=LATER, prices=prices, by="run")
    assert {group.name: group.cost for group in found.groups} == {
        "r-1": pytest.approx(1.0),  # two device hours each
        "r-2": pytest.approx(6.0),
    }
    by_its_name = replace(prices, pools={"spot": {"gpu": 0.5}})
    assert read_goodput(ledger, as_of=LATER, prices=by_its_name).total.cost == pytest.approx(12.0)


def test_evals_are_grouped_by_how_late_they_were(fill: Fill) -> None:
    run = attempt(History("r-1").declare(), "completed")
    committed = run.state.checkpoints[0]
    run.open_eval(committed.ref)
    run.at = committed.at + HOUR
    run.end_eval(run.state.evals[0].opened)
    result = read_goodput(fill(run), as_of=LATER).eval_lag
    assert (result.evals, result.mean_s, result.max_s) == (1, 3600.0, 3600.0)


def test_of_many_runs_the_worst_are_shown_and_the_others_counted(fill: Fill) -> None:
    runs = [
        attempt(History(f"r-{n:02d}").declare(), "preempted", commits=False)
        for n in range(GROUPS_MAX + 3)
    ]
    result = read_goodput(fill(*runs), as_of=LATER, by="run")
    assert (len(result.groups), result.left_out, result.runs) == (GROUPS_MAX, 3, GROUPS_MAX + 3)
    assert result.total.attempts == GROUPS_MAX + 3
    assert "and 3 more, of less waste." in format_goodput(result)


def test_an_empty_ledger_is_reported_in_a_sentence(fill: Fill) -> None:
    result = read_goodput(fill(), as_of=LATER)
    assert result.total.attempts == 0
    assert "Nothing ran" in format_goodput(result)
