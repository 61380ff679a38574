"""An attempt whose run has spent its money or time is asked to save and end, once, and not retried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.bodies import ended
from tests.deciders import retried, settled_run, world_of
from tests.fakes import FakeClock, FakeObjectStore
from tests.histories import History
from tracks_dagster.attempts.effects.caps import Caps
from tracks_dagster.attempts.effects.manual_retry import ManualRetry, retry_by_person
from tracks_dagster.attempts.effects.world import World
from tracks_dagster.ledger.effects.deciding import decide_due
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.effects.ticks import ONE_BY_ONE
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.ledger.prices import Prices
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.scheduling.policy import Allowance, SchedulingPolicy
from tracks_dagster.track.bodies import BUDGET
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Kind
from tracks_dagster.track.states.lifecycle import run_status

PRICES = Prices(currency="USD", per_device_hour={"cpu": 3.6}, source="prices.yaml")
Tick = Callable[..., World]


@pytest.fixture
def tick(tracks: Tracks, store: FakeObjectStore, clock: FakeClock, ledger: Ledger) -> Tick:
    """Store a run of two ranks that trains since then, and return a tick so many seconds later."""

    def ticked(after_s: float, *, max_device_s: float | None = None, **changes: object) -> World:
        history = History().declare(max_cost=2.0, max_device_s=max_device_s, stage="canary")
        history.open().supervise().place().restore().commit(10)
        if tracks.find_run("r-1") is None:
            history.write_to(store)
            Projector(store, ledger).scan()
        placed_at = tracks.run("r-1").attempts[0].placed_at
        assert placed_at is not None
        clock.at = placed_at + timedelta(seconds=after_s)
        world = world_of(tracks, ledger, **{"prices": PRICES, **changes})
        decide_due(world, (Caps(),), ONE_BY_ONE)
        return world

    return ticked


def test_a_run_saves_and_ends_once_its_money_is_spent(tracks: Tracks, tick: Tick) -> None:
    tick(900.0)  # 1.80 of 2 USD
    assert tracks.run("r-1").stops == ()
    tick(1001.0)
    world = tick(1006.0)
    [stop] = tracks.run("r-1").stops
    assert (stop.body.mode, stop.body.by) == (BUDGET, "watch_attempts")
    assert stop.body.why.startswith("2.00 of at most 2.00 USD spent")
    body = ended("budget_exhausted", last_step=20, device_seconds=2010.0)
    draft = tracks.draft(Kind.ATTEMPT_ENDED, body, attempt_id=1)
    tracks.decide_run("r-1", lambda state: draft)
    assert settled_run(tracks, ledger=world.ledger, prices=PRICES).what == "refused"
    state = tracks.run("r-1")
    assert state.refusal is not None
    assert state.refusal.body.limit == "money"
    assert stop.body.why in run_status(state).why
    retry = ManualRetry(name="ann", why="It is worth it.")
    with pytest.raises(InvalidInput, match=r"has cost 2.01 USD and may cost 2.00: .* --max-cost"):
        retry_by_person(world, "r-1", retry)
    retry_by_person(world, "r-1", replace(retry, max_cost=3.0))
    assert tracks.run("r-1").attempts[-1].opened.max_cost == 3.0


def test_a_run_that_was_interrupted_over_its_cap_is_not_opened_again(
    tracks: Tracks, tick: Tick, clock: FakeClock
) -> None:
    world = tick(100.0)
    body = ended("preempted", last_step=20, device_seconds=2100.0)
    draft = tracks.draft(Kind.ATTEMPT_ENDED, body, attempt_id=1)
    tracks.decide_run("r-1", lambda state: draft)
    clock.advance(3600)  # past the backoff
    assert settled_run(tracks, ledger=world.ledger, prices=PRICES).what == "refused"
    assert retried(tracks, by="ann", why="No prices, no cap.").attempt_id == 2


def test_a_team_that_spent_its_day_ends_its_runs(tracks: Tracks, tick: Tick) -> None:
    scheduling = SchedulingPolicy(teams={"research": Allowance(money_per_day=0.5)})
    policy = replace(DEFAULT_POLICY, scheduling=scheduling)
    tick(300.0, policy=policy)  # 0.60 USD since midnight, of 0.50; of 2 for the run
    [stop] = tracks.run("r-1").stops
    assert "of at most 0.50 USD spent by team research since midnight UTC" in stop.body.why


def test_a_stage_ends_its_run_once_its_devices_have_worked_for_so_long(
    tracks: Tracks, tick: Tick
) -> None:
    tick(299.0, max_device_s=300.0, prices=None)
    assert tracks.run("r-1").stops == ()
    world = tick(301.0, prices=None)
    [stop] = tracks.run("r-1").stops
    assert stop.body.mode == BUDGET
    assert stop.body.why == (
        "each of its devices has worked for 5 min of at most 5 min (time of stages.canary in "
        "policy.yaml)"
    )
    body = ended("budget_exhausted", last_step=20, device_seconds=604.0)  # of two ranks
    draft = tracks.draft(Kind.ATTEMPT_ENDED, body, attempt_id=1)
    tracks.decide_run("r-1", lambda state: draft)
    assert settled_run(tracks, ledger=world.ledger).what == "refused"
    refusal = tracks.run("r-1").refusal
    assert refusal is not None
    assert refusal.body.limit == "stage_time"
    assert "with fewer steps" in refusal.body.what_to_do
    with pytest.raises(InvalidInput, match="cannot be retried: each of its devices has worked"):
        retry_by_person(world, "r-1", ManualRetry(name="ann", why="Once more."))


def test_without_prices_nothing_costs_anything(tracks: Tracks, tick: Tick) -> None:
    tick(10**6, prices=None)
    assert tracks.run("r-1").stops == ()
