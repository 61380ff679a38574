"""Caps in money: what a run has cost by now, and which cap that meets."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.histories import History
from tracks_dagster.ledger.prices import Prices
from tracks_dagster.retry.caps import (
    check_cap,
    cost_of,
    max_cost_of,
    over_day_cap,
    over_run_cap,
)
from tracks_dagster.retry.decide import decide
from tracks_dagster.retry.decision import Refuse
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.retry.stage_time import over_stage_time
from tracks_dagster.scheduling.model import Usage
from tracks_dagster.scheduling.policy import Allowance, SchedulingPolicy, WorkloadClass
from tracks_dagster.track.bodies import BUDGET, MANUAL, ComputeRequest, HeldDevices
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.states.lifecycle import run_status

PRICES = Prices(currency="USD", per_device_hour={"cpu": 3.6}, source="prices.yaml")


def run(max_cost: float | None = 2.0) -> History:
    """A run of two ranks whose first attempt took 1000 device seconds: 1 USD of its 2."""
    history = History().declare(max_cost=max_cost)
    history.open().supervise().place().restore().commit(10)
    return history.end("preempted", last_step=12, device_seconds=1000.0)


def test_an_open_attempt_costs_from_its_placement_on() -> None:
    history = run().open().supervise().place().restore()
    placed_at = history.state.attempts[-1].placed_at
    assert placed_at is not None
    later = placed_at + timedelta(seconds=400)
    assert cost_of(history.state, PRICES, later).amount == pytest.approx(1.8)  # 2 × 400 s more
    assert over_run_cap(history.state, PRICES, later) is None
    assert over_run_cap(history.state, PRICES, placed_at + timedelta(seconds=500)) == (
        "2.00 of at most 2.00 USD spent (its max cost; prices: prices.yaml)"
    )
    before = placed_at - timedelta(days=1)  # a clock that jumped costs nothing
    assert cost_of(history.state, PRICES, before).amount == pytest.approx(1.0)


def test_an_open_attempt_with_leased_devices_costs_from_its_claim_on() -> None:
    """Two ranks import for a minute before the first of them is placed."""
    held = HeldDevices(pool="local/box", seq=4, devices=("GPU-0", "GPU-1"), why="free")
    older = replace(held, seq=2)
    history = run().open().supervise(held=older).supervise(held=held)
    minute = history.records[-1].at + timedelta(seconds=60)
    assert cost_of(history.state, PRICES, minute).amount == pytest.approx(1.12)  # 2 × 60 s more
    history.supervise("dagster-2", held=held).place()  # it adopts the gang
    assert cost_of(history.state, PRICES, minute).amount == pytest.approx(1.12)


def test_a_cap_that_an_attempt_reached_is_reached_after_its_end() -> None:
    """Its record counts from its placement on; it had its devices a minute before."""
    held = HeldDevices(pool="local/box", seq=4, devices=("GPU-0", "GPU-1"), why="free")
    history = run(max_cost=1.5).open().supervise(held=held)
    claimed_at = history.records[-1].at
    history.at += timedelta(seconds=60)
    history.place()
    placed_at = history.state.attempts[-1].placed_at
    assert placed_at is not None
    late = claimed_at + timedelta(seconds=250)
    assert over_run_cap(history.state, PRICES, late) is not None
    trained_s = (late - placed_at).total_seconds()
    history.stop(BUDGET).end("budget_exhausted", device_seconds=2 * trained_s)
    assert over_run_cap(history.state, PRICES, late) is not None


def test_one_that_ended_before_its_placement_costs_from_its_claim_to_its_end() -> None:
    held = HeldDevices(pool="local/box", seq=4, devices=("GPU-0", "GPU-1"), why="free")
    history = run().open().supervise(held=held)
    history.at += timedelta(seconds=60)
    history.end("preempted", device_seconds=0.0)
    ended_at = history.state.attempts[-1].ended_at
    claimed_at = history.state.attempts[-1].claimed_at
    assert ended_at is not None
    assert claimed_at is not None
    cost = 1.0 + 2 * (ended_at - claimed_at).total_seconds() / 1000
    assert cost_of(history.state, PRICES, history.at).amount == pytest.approx(cost)
    assert cost > 1.1


def test_the_time_of_a_stage_counts_from_the_placement_on_as_the_record_of_the_end_does() -> None:
    held = HeldDevices(pool="local/box", seq=4, devices=("GPU-0", "GPU-1"), why="free")
    history = History().declare(max_device_s=300.0, stage="smoke").open().supervise(held=held)
    assert over_stage_time(history.state, history.at + timedelta(hours=1)) is None
    history.place().restore().commit(10)
    placed_at = history.state.attempts[-1].placed_at
    assert placed_at is not None
    assert over_stage_time(history.state, placed_at + timedelta(seconds=299)) is None
    assert over_stage_time(history.state, placed_at + timedelta(seconds=300)) is not None
    history.stop(BUDGET).end("budget_exhausted", last_step=15, device_seconds=602.0)
    refused = decide(history.state, DEFAULT_POLICY, history.at)
    assert isinstance(refused, Refuse)
    assert (refused.limit, "with fewer steps" in refused.what_to_do) == ("stage_time", True)


def test_the_time_of_a_stage_is_of_each_device_however_many_an_attempt_has() -> None:
    history = History().declare(max_device_s=300.0, stage="smoke").open().place(world_size=2)
    history.restore().commit(10).end("preempted", last_step=12, device_seconds=200.0)  # 100 s each
    history.open().place(world_size=1)
    placed_at = history.state.attempts[-1].placed_at
    assert placed_at is not None
    assert over_stage_time(history.state, placed_at + timedelta(seconds=199)) is None
    assert over_stage_time(history.state, placed_at + timedelta(seconds=200)) is not None


def test_the_time_of_a_stage_counts_the_devices_that_a_place_gave() -> None:
    history = History().declare(max_device_s=300.0, stage="smoke").open().place(world_size=2)
    history.restore().commit(10)
    history.end("preempted", last_step=12, device_seconds=800.0, devices=8)  # 100 s each
    assert over_stage_time(history.state, history.at) is None
    history.open().place(world_size=2).restore().commit(20)
    history.end("preempted", last_step=22, device_seconds=1600.0, devices=8)  # 200 s each
    assert over_stage_time(history.state, history.at) is not None


def test_a_device_without_a_price_is_named_and_its_price_never_guessed() -> None:
    other = Prices(currency="USD", per_device_hour={"H100": 3.6})
    cost = cost_of(run().state, other, run().at)
    assert (cost.amount, cost.unpriced_s) == (0.0, 1000.0)
    assert over_run_cap(run().state, other, run().at) is None


def test_each_attempt_costs_what_its_pool_does() -> None:
    spot, ours = ComputeRequest(pool="spot"), ComputeRequest(pool="own")
    history = History().declare(compute=spot)
    for compute in (spot, ours):
        history.open(compute=compute).supervise().place().restore()
        history.end("preempted", last_step=12, device_seconds=1000.0)
    prices = replace(PRICES, pools={"spot": {"cpu": 0.36}})
    now = history.records[-1].at
    assert cost_of(history.state, prices, now).amount == pytest.approx(0.1 + 1.0)
    check_cap(5.0, Prices(currency="USD", pools={"spot": {"cpu": 0.36}}), spot)
    with pytest.raises(InvalidInput, match="no price of the device class 'cpu'"):
        check_cap(5.0, Prices(currency="USD", pools={"spot": {"cpu": 0.36}}), ours)


def test_a_person_gives_more_and_the_newest_word_counts() -> None:
    history = run().open(cause=MANUAL, max_cost=5.0).end("preempted").open().end("preempted")
    assert max_cost_of(history.state) == 5.0
    assert max_cost_of(run(None).state) is None


def test_a_spent_cap_ends_as_budget_exhausted_and_is_refused_with_the_numbers() -> None:
    history = run().open().supervise().place().restore().stop(BUDGET)
    history.end("budget_exhausted", last_step=15)
    refused = decide(history.state, DEFAULT_POLICY, history.at)
    assert isinstance(refused, Refuse)
    assert refused.limit == "money"
    assert history.state.stops[-1].body.why in refused.decision
    assert 'tracks retry r-1 --why "…" --max-cost AMOUNT' in refused.what_to_do
    assert run_status(history.state).state == "running"  # the refusal is due, and nobody's turn yet


CAPPED = SchedulingPolicy(
    classes={
        **SchedulingPolicy().classes,
        "single": WorkloadClass(money_per_day=10.0),
    },
    teams={"research": Allowance(money_per_day=5.0)},
    owners={"ann": Allowance(money_per_day=1.0)},
)


@pytest.mark.parametrize(
    ("usage", "words"),
    [
        (Usage(), None),
        (Usage(money_by_class={"single": 9.99}, money_by_team={"other": 50.0}), None),
        (
            Usage(money_by_class={"single": 10.0}),
            "10.00 of at most 10.00 USD spent by class single",
        ),
        (Usage(money_by_team={"research": 6.5}), "6.50 of at most 5.00 USD spent by team research"),
        (Usage(money_by_owner={"ann": 1.25}), "1.25 of at most 1.00 USD spent by owner ann"),
    ],
)
def test_the_caps_of_a_day_are_those_of_class_team_and_owner(
    usage: Usage, words: str | None
) -> None:
    state = run().open().state
    found = over_day_cap(state, CAPPED, usage, "USD")
    assert found is None if words is None else found is not None and found.startswith(words)
    assert over_day_cap(state, SchedulingPolicy(), usage, "USD") is None
    by_person = run().open(cause=MANUAL).state
    assert over_day_cap(by_person, CAPPED, usage, "USD") is None


@pytest.mark.parametrize(
    ("amount", "prices", "words"),
    [
        (0.0, PRICES, "is not an amount of money"),
        (float("nan"), PRICES, "is not an amount of money"),
        (float("inf"), PRICES, "is not an amount of money"),
        (5.0, None, "there is no price table"),
        (5.0, replace(PRICES, per_device_hour={"H100": 2.0}), "no price of the device class 'cpu'"),
    ],
)
def test_a_cap_that_nothing_would_meet_is_refused(
    amount: float, prices: Prices | None, words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        check_cap(amount, prices, ComputeRequest())
    check_cap(5.0, PRICES, ComputeRequest())


def test_a_cap_that_nobody_asked_for_names_the_policys_rule() -> None:
    with pytest.raises(
        InvalidInput, match=r"of 5000000 \(policy\.yaml: cost\.max_cost, or money of"
    ):
        check_cap(5_000_000.0, None, ComputeRequest(), is_by_policy=True)
