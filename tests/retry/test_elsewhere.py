"""A preempted run leaves a pool that is short, and comes back to its own."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.deciders import world_of
from tests.fakes import FakeClock, FakeObjectStore
from tests.histories import History
from tests.retry.test_decide import begun, retried, retry_of
from tests.retry.test_remedies import CLUSTER
from tracks_dagster.attempts.effects.pool_returns import PoolReturns
from tracks_dagster.ledger.deciding import Append
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.retry.decide import decide
from tracks_dagster.retry.decision import Retry
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.retry.elsewhere import is_due_back
from tracks_dagster.track.bodies import MANUAL, MOVE

POLICY = replace(DEFAULT_POLICY, other_pools={"spot": "on-demand"})
HOUR = timedelta(hours=1)


def pool_of_next(history: History) -> str | None:
    decision = decide(history.state, POLICY, history.at + timedelta(minutes=2))
    assert isinstance(decision, Retry), decision
    return decision.compute.pool


def preempted(times: int) -> History:
    """A run in the pool spot, preempted so often within minutes; each retry is what the policy says."""
    history = begun(compute=CLUSTER).commit(10).end("preempted", last_step=12)
    for _ in range(times - 1):
        history = retried(history, policy=POLICY).end("preempted", last_step=12)
    return history


def test_the_second_preemption_within_the_hour_leaves_the_pool() -> None:
    assert CLUSTER.pool == "spot"
    assert pool_of_next(preempted(1)) == "spot"
    moved = preempted(2)
    assert pool_of_next(moved) == "on-demand"
    decision = decide(moved.state, POLICY, moved.at + timedelta(minutes=2))
    assert isinstance(decision, Retry)
    assert "compute.pool spot → on-demand" in decision.decision
    assert decision.compute.excluded_nodes == ()


def test_preemptions_hours_apart_are_chance() -> None:
    history = preempted(1)
    history.at += 2 * HOUR
    history = retried(history, policy=POLICY).end("preempted", last_step=12)
    assert pool_of_next(history) == "spot"


def test_without_another_pool_it_stays() -> None:
    history = preempted(2)
    assert retry_of(history).compute.pool == "spot"  # by the shipped policy, which names none


@pytest.mark.parametrize("reason", ["preempted", "node_failure", "hang"])
def test_after_an_hour_away_any_retry_goes_back(reason: str) -> None:
    history = retried(preempted(2), policy=POLICY)
    assert history.state.attempts[-1].opened.compute.pool == "on-demand"
    soon = history.at
    history.end(reason, last_step=14)
    assert pool_of_next(history) == "on-demand"
    history.at = soon + HOUR
    assert pool_of_next(history) == "spot"


def test_a_person_who_chose_a_pool_made_it_its_own() -> None:
    history = preempted(2)
    history.open(cause=MANUAL, compute=replace(CLUSTER, pool="on-demand")).place().restore()
    assert not is_due_back(history.state, POLICY, history.at + 5 * HOUR)


def test_what_nothing_ends_elsewhere_is_asked_to_come_back() -> None:
    history = retried(preempted(2), policy=POLICY)
    assert not is_due_back(history.state, POLICY, history.at)
    assert is_due_back(history.state, POLICY, history.at + HOUR)
    history.at += HOUR
    history.stop(MOVE).commit(20).end("node_drained", last_step=20)
    assert pool_of_next(history) == "spot"


def test_the_request_names_both_pools_and_waits_until_it_trains(
    tracks: Tracks, store: FakeObjectStore, clock: FakeClock
) -> None:
    world = replace(world_of(tracks), policy=POLICY)
    history = retried(preempted(2), policy=POLICY)
    clock.at = history.at + HOUR
    asked = PoolReturns().decide(history.state, world)
    assert isinstance(asked, Append)
    assert asked.draft.body["mode"] == MOVE
    assert "back from on-demand to its own pool, spot, after 1 h" in asked.why
    assert PoolReturns().decide(history.stop(MOVE).state, world) is None  # it is asked once
    clock.at = history.at
    assert PoolReturns().decide(retried(preempted(2), policy=POLICY).state, world) is None
    assert PoolReturns().due(replace(world, policy=DEFAULT_POLICY)) == ()
