"""What teams had of the devices: shares that fade, and a day's money, from a ledger of known runs."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.bodies import placed
from tests.fakes import FakeObjectStore
from tests.histories import History
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.ledger.prices import Prices
from tracks_dagster.scheduling.effects.usage import read_shares, read_usage
from tracks_dagster.scheduling.model import Usage
from tracks_dagster.scheduling.policy import Allowance, Order, SchedulingPolicy
from tracks_dagster.scheduling.usage import Stay, decayed_device_s, midnight_s, money_since
from tracks_dagster.track.bodies import ComputeRequest
from tracks_dagster.track.records import format_time

HOUR_S = 3600.0
NOON = datetime(2026, 2, 1, 12, tzinfo=UTC)
CPU = Prices(currency="USD", per_device_hour={"cpu": 0.5})
CAPPED = SchedulingPolicy(teams={"vision": Allowance(money_per_day=10), "speech": Allowance()})


def test_a_share_fades_by_half_in_a_half_life() -> None:
    last_hour = Stay(team="a", devices=2, begin_s=0, end_s=HOUR_S)
    found = decayed_device_s([last_hour], now_s=HOUR_S, half_life_s=HOUR_S)
    assert found["a"] == pytest.approx(5194, abs=1)  # 2 × 3600 × (1 - 1/2) / ln 2
    later = decayed_device_s([last_hour], now_s=2 * HOUR_S, half_life_s=HOUR_S)
    assert later["a"] == pytest.approx(found["a"] / 2)


@pytest.mark.parametrize("end_s", [HOUR_S, 5 * HOUR_S], ids=["now", "by a clock that is ahead"])
def test_no_stay_counts_what_is_still_to_come(end_s: float) -> None:
    stay = Stay(team="a", begin_s=0, end_s=end_s, per_hour=1.0)
    long_life_s = 1e9
    found = decayed_device_s([stay], now_s=HOUR_S, half_life_s=long_life_s)
    assert found["a"] == pytest.approx(HOUR_S, rel=1e-3)
    assert money_since([stay], lambda s: s.team, since_s=0, now_s=HOUR_S) == {"a": 1.0}
    ahead = Stay(team="a", begin_s=2 * HOUR_S, end_s=3 * HOUR_S)
    assert decayed_device_s([ahead], now_s=HOUR_S, half_life_s=HOUR_S) == {"a": 0.0}


def test_only_the_hours_of_today_cost_todays_money() -> None:
    assert midnight_s(3 * 86_400.0 + 17) == 3 * 86_400.0
    stays = [
        Stay(team="a", devices=2, begin_s=0, end_s=10 * HOUR_S, per_hour=3.0),
        Stay(team="a", begin_s=0, end_s=7 * HOUR_S, per_hour=3.0),  # it ended yesterday
        Stay(team="b", begin_s=8 * HOUR_S, end_s=10 * HOUR_S),  # no price
    ]
    found = money_since(stays, lambda s: s.team, since_s=8 * HOUR_S, now_s=10 * HOUR_S)
    assert found == {"a": 12.0, "b": 0.0}  # 2 devices × 2 h × 3


def held(run_id: str, begin: datetime, hours: float | None, **declared: object) -> History:
    """Return a run of one attempt that held its devices from `begin` on; hours None: it still does."""
    fields = {"compute": ComputeRequest(ranks=2), **declared}
    run = History(run_id, begin=begin - timedelta(minutes=5)).declare(**fields)
    run.open()
    run.at = begin
    run.place(world_size=2, ranks=placed("x").ranks[:1]).restore()
    if hours is not None:
        run.at = begin + timedelta(hours=hours)
        times = {"started_at": format_time(begin), "finished_at": format_time(run.at)}
        run.end("completed", last_step=10, **times)
    return run


def project(ledger: Ledger, *runs: History) -> None:
    store = FakeObjectStore()
    for run in runs:
        run.write_to(store)
    Projector(store, ledger).scan()


def test_shares_are_those_of_the_runs_in_the_ledger(ledger: Ledger) -> None:
    week_s = 7 * 86_400.0
    long = held("long", NOON - timedelta(days=7, hours=5), 5, team="a")
    short = [held(f"s-{n}", NOON - timedelta(hours=n + 1), 0.5, team="b") for n in range(4)]
    still = held("open", NOON - timedelta(hours=3), None, team="c")
    project(ledger, long, *short, still)
    found = read_shares(ledger, now=NOON, half_life_s=week_s)
    assert found["a"] == pytest.approx(2 * 5 * HOUR_S / 2, rel=0.02)  # a half-life ago
    assert found["b"] == pytest.approx(2 * 4 * HOUR_S / 2, rel=0.02)
    assert found["c"] == pytest.approx(2 * 3 * HOUR_S, rel=0.02)
    assert read_shares(ledger, now=NOON + timedelta(days=100), half_life_s=week_s).keys() == {"c"}


def test_the_money_of_today_is_counted_by_class_team_and_owner(ledger: Ledger) -> None:
    yesterday = held("y", NOON - timedelta(hours=20), 10, team="vision", owner="ann")  # 2 h today
    today = held("t", NOON - timedelta(hours=2), 1, team="speech", owner="bob")
    sweep = held("s", NOON - timedelta(hours=1), None, team="speech", workload_class="sweep")
    gone = held("g", NOON - timedelta(hours=1), 0, team="speech", workload_class="gone")
    project(ledger, yesterday, today, sweep, gone)
    found = read_usage(ledger, CAPPED, now=NOON, prices=CPU)
    assert found.money_by_team == pytest.approx({"vision": 2.0, "speech": 2.0})
    assert found.money_by_owner == pytest.approx({"ann": 3.0, "bob": 1.0})
    assert found.money_by_class == pytest.approx({"single": 3.0, "sweep": 1.0})


def test_an_eval_spends_under_its_own_class(ledger: Ledger) -> None:
    run = History("r", begin=NOON - timedelta(hours=4)).declare(team="vision", owner="ann")
    run.open().place().restore().commit(10).end("completed", last_step=10)
    run.at = NOON - timedelta(hours=3)
    run.open_eval(run.state.checkpoints[0].ref)
    run.at = NOON - timedelta(hours=1)
    begin = format_time(NOON - timedelta(hours=2))
    project(ledger, run.end_eval(run.state.evals[0].opened, started_at=begin))
    found = read_usage(ledger, CAPPED, now=NOON, prices=CPU)
    assert found.money_by_class["eval"] == pytest.approx(0.5)
    assert found.money_by_team["vision"] == pytest.approx(
        0.5, abs=0.1
    )  # its training took a minute
    here = replace(CPU, pools={"local/cpu": {"cpu": 2.0}, "kubernetes/cpu": {"cpu": 9.0}})
    found = read_usage(ledger, CAPPED, now=NOON, prices=here)
    assert found.money_by_class["eval"] == pytest.approx(2.0)


def test_nothing_is_read_that_no_rule_asks_for(ledger: Ledger) -> None:
    project(ledger, held("r", NOON - timedelta(hours=2), 1))
    assert read_usage(ledger, SchedulingPolicy(), now=NOON, prices=CPU) == Usage()
    assert read_usage(ledger, CAPPED, now=NOON, prices=None) == Usage()
    fair = SchedulingPolicy(order=Order.FAIR)
    assert read_usage(ledger, fair, now=NOON, prices=CPU).by_team.keys() == {"research"}
