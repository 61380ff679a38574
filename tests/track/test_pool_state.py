"""A pool's track folds to the strikes, quarantines and releases of its nodes, whatever the order."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bodies import BEGIN
from tests.histories import Grown
from tests.pools import HOUR_S, POOL, PoolHistory
from tracks_dagster.track.bodies import Note
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import InvalidDecision, TrackBroken
from tracks_dagster.track.names import pool_track
from tracks_dagster.track.ports import is_key
from tracks_dagster.track.records import Draft, Kind
from tracks_dagster.track.states import pool_state
from tracks_dagster.track.track import log_key

NODES = ("n-1", "n-2", "n-3")
STEPS = st.lists(
    st.tuples(st.sampled_from(("strike", "quarantine", "release")), st.sampled_from(NODES)),
    min_size=1,
    max_size=20,
)


def played(steps: list[tuple[str, str]]) -> PoolHistory:
    history = PoolHistory()
    for what, node in steps:
        getattr(history, what)(node)
    return history


def test_a_quarantine_holds_until_its_time_without_another_record() -> None:
    state = PoolHistory().quarantine("n-1", for_s=HOUR_S).state
    [node] = state.nodes
    last = node.quarantines[0].until_at
    assert last == BEGIN + timedelta(hours=1)
    assert node.quarantine_at(last - timedelta(seconds=1)) is not None
    assert node.quarantine_at(last) is None
    assert state.quarantined_at(last) == ()


def test_the_newest_quarantine_replaces_one_that_holds() -> None:
    history = PoolHistory().quarantine("n-1", for_s=48 * HOUR_S).quarantine("n-1", for_s=HOUR_S)
    node = history.state.node("n-1")
    assert node is not None
    assert node.quarantine_at(BEGIN + timedelta(hours=2)) is None


def test_a_release_ends_the_quarantine_and_forgives_the_strikes_before_it() -> None:
    history = PoolHistory().strike("n-1").quarantine("n-1").strike("n-2").release("n-1")
    node, other = history.state.node("n-1"), history.state.node("n-2")
    assert node is not None
    assert other is not None
    assert node.quarantine_at(history.at) is None
    assert (len(node.strikes), node.standing) == (1, ())
    assert len(other.standing) == 1
    again = history.strike("n-1").quarantine("n-1").state.node("n-1")
    assert again is not None
    assert [strike.seq for strike in again.standing] == [4]
    assert again.quarantine_at(history.at) is not None


def test_an_attempt_strikes_once() -> None:
    history = PoolHistory().strike("n-1", run_id="r", attempt_id=2)
    assert history.state.has_struck("r", 2)
    assert not history.state.has_struck("r", 1)
    history.strike("n-2", run_id="r", attempt_id=2)
    assert [len(node.strikes) for node in history.state.nodes] == [1, 0]


def test_what_does_not_belong_there_is_refused() -> None:
    state = PoolHistory().strike("n-1").alert().state
    other = Grown(pool_track("spot"))
    with pytest.raises(TrackBroken, match="of pool 'spot' in the track of"):
        pool_state.apply(state, PoolHistory("spot").strike("n-1").records[0])
    with pytest.raises(TrackBroken, match="does not belong"):
        pool_state.apply(state, replace(state.head, kind=Kind.RUN_DECLARED))
    with pytest.raises(TrackBroken, match="does not belong"):
        pool_state.apply(None, PoolHistory().strike("n-1").alert().records[1])
    with pytest.raises(TrackBroken, match="cannot be read"):
        PoolHistory().strike("n-1", struck_at="yesterday")
    draft = Draft(uid="u", kind=Kind.NOTE, body=to_json(Note(by="ann", text="first")))
    with pytest.raises(InvalidDecision, match="no record names pool"):
        pool_state.check(None, POOL, draft)
    struck = PoolHistory("spot").strike("n-1").drafts[0]
    with pytest.raises(InvalidDecision, match="of pool 'spot'"):
        pool_state.check(None, POOL, struck)
    assert other.records == []


def test_a_lease_stands_until_a_later_one_frees_it() -> None:
    history = PoolHistory().lease("r-1/a01", "GPU-1", "GPU-2").lease("r-2/a01", "GPU-3")
    history.confirm(0).confirm(0, "dagster-2")
    first = history.state.lease_of("r-1/a01")
    assert first is not None
    assert first.confirmed_at == history.records[2].at
    assert first.confirmed_by == "dagster-2"
    history.lease("r-3/a01", "GPU-1", freed=(0,))
    assert [lease.body.key for lease in history.state.leases] == ["r-2/a01", "r-3/a01"]
    assert history.state.lease_of("r-1/a01") is None


@pytest.mark.parametrize(
    ("changes", "objection"),
    [
        ({"devices": ()}, "it names no devices"),
        ({"devices": ("GPU-2", "GPU-2")}, "or one twice: GPU-2, GPU-2"),
        ({"devices": ("GPU-2", "GPU-1")}, "lease 0 of r-1/a01 holds GPU-1"),
        ({"key": "r-1/a01"}, "r-1/a01 has lease 0 already"),
        ({"freed": (7,)}, "it frees lease 7, which is not there"),
        # the first one has its device alone, whatever the second one needs
        ({"devices": ("GPU-1",), "memory_bytes": 1}, "lease 0 of r-1/a01 holds GPU-1"),
    ],
)
def test_a_lease_of_what_is_taken_is_refused(changes: dict[str, Any], objection: str) -> None:
    state = PoolHistory().lease("r-1/a01", "GPU-1").state
    fields = {"key": "r-2/a01", "devices": ("GPU-2",)} | changes
    wanted = PoolHistory().lease(fields.pop("key"), *fields.pop("devices"), **fields)
    with pytest.raises(InvalidDecision, match=objection):
        pool_state.check(state, POOL, wanted.drafts[0])


def test_two_of_known_memory_may_have_one_device_and_a_freed_one_is_free() -> None:
    state = PoolHistory().lease("r-1/a01", "GPU-1", memory_bytes=1).state
    for wanted in (
        PoolHistory().lease("r-2/a01", "GPU-1", memory_bytes=1),
        PoolHistory().lease("r-2/a01", "GPU-1", freed=(0,)),
        PoolHistory().lease("r-1/a01", "GPU-2", freed=(0,)),
    ):
        assert pool_state.check(state, POOL, wanted.drafts[0])


def test_only_a_lease_that_stands_is_confirmed() -> None:
    confirmed = PoolHistory().lease("r-1/a01", "GPU-1").confirm(0)
    freed = PoolHistory().lease("r-1/a01", "GPU-1").lease("r-2/a01", "GPU-1", freed=(0,))
    assert pool_state.check(confirmed.state, POOL, confirmed.drafts[1])
    for state in (freed.state, None):
        with pytest.raises(InvalidDecision, match="there is no lease 0"):
            pool_state.check(state, POOL, confirmed.drafts[1])


def test_what_a_person_gave_back_is_free_and_nothing_is_confirmed_or_given_back_again() -> None:
    history = PoolHistory().lease("r-1/a01", "GPU-1").confirm(0).lease("r-2/a01", "GPU-2").free(0)
    assert [lease.body.key for lease in history.state.leases] == ["r-2/a01"]
    wanted = PoolHistory().lease("r-3/a01", "GPU-1")
    assert pool_state.check(history.state, POOL, wanted.drafts[0])
    for late in (history.drafts[1], history.drafts[3]):
        with pytest.raises(InvalidDecision, match="there is no lease 0"):
            pool_state.check(history.state, POOL, late)


@given(steps=STEPS)
def test_folding_a_prefix_and_going_on_gives_what_folding_at_once_gives(
    steps: list[tuple[str, str]],
) -> None:
    history = played(steps)
    for cut in range(len(steps) + 1):
        before = pool_state.fold(history.records[:cut])
        assert pool_state.fold(history.records[cut:], before) == history.state


@given(steps=STEPS)
def test_what_happens_on_one_node_says_nothing_of_another(steps: list[tuple[str, str]]) -> None:
    for node in NODES:
        own = [step for step in steps if step[1] == node]
        there = played(steps).state.node(node)
        alone = played(own).state.node(node) if own else None
        assert (there is None) == (alone is None)
        if there is not None and alone is not None:
            counts = (len(there.strikes), len(there.quarantines), len(there.releases))
            assert counts == (len(alone.strikes), len(alone.quarantines), len(alone.releases))
            assert len(there.standing) == len(alone.standing)
            released = [quarantine.release is None for quarantine in there.quarantines]
            assert released == [quarantine.release is None for quarantine in alone.quarantines]


@given(steps=STEPS, hours=st.integers(0, 60))
def test_once_expired_a_quarantine_stays_so(steps: list[tuple[str, str]], hours: int) -> None:
    state = played(steps).state
    now = BEGIN + timedelta(hours=hours)
    held = {q.body.node for q in state.quarantined_at(now)}
    later = {q.body.node for q in state.quarantined_at(now + timedelta(hours=1))}
    assert later <= held


@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))
def test_every_pool_has_a_track_of_its_own_that_a_store_can_hold(one: str, other: str) -> None:
    assert (pool_track(one) == pool_track(other)) == (one == other)
    assert is_key(log_key(pool_track(one), 0))
    assert pool_track(one).count("/") == 1


def test_a_pool_without_a_name_has_the_name_that_the_ledger_gives_it() -> None:
    assert pool_track("kubernetes/h100") == "pools/kubernetes=2Fh100"
    assert pool_track("..") == "pools/=2E=2E"
