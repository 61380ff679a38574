"""A storm in a pool: what is one, how long retries pause, and that no run is starved by it."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta

import pytest

from tests.bodies import BEGIN
from tests.histories import History
from tracks_dagster.holds.storm import PoolEnd, PoolView, StormRule, find_storm
from tracks_dagster.ledger.deciding import Wait
from tracks_dagster.retry.decide import decide
from tracks_dagster.retry.decision import Decision, Refuse, Retry
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.retry.policy import Remedy, RetryPolicy
from tracks_dagster.track.bodies import ComputeRequest, Debit
from tracks_dagster.track.names import ALERT_POOL_STORM, ALERT_RETRY_STORM
from tracks_dagster.track.placement import pool_of
from tracks_dagster.track.records import Kind

RULE = StormRule(ends=4, runs=2, share=0.5, window_s=300, pause_s=100, pause_s_max=600)
NOW = BEGIN + timedelta(hours=1)
POOL = "local/cpu"


def view(*ages_s: float, runs: int = 2, run_count: int = 4, at: datetime = NOW) -> PoolView:
    """Return the pool of `failed` in which attempts of `runs` runs ended that long before `at`."""
    ends = [
        PoolEnd(run_id=f"x-{n % runs}", attempt_id=n, ended_at=at - timedelta(seconds=age_s))
        for n, age_s in enumerate(ages_s)
    ]
    return PoolView(pool=POOL, ends=ends, run_count=run_count)


@pytest.mark.parametrize(
    ("pool", "is_storm"),
    [
        (view(1, 2, 3), False),  # 3 of 4 ends
        (view(1, 2, 3, 4), True),
        (view(1, 2, 3, 299), True),
        (view(1, 2, 3, 300), False),  # the window is the 300 s before now
        (view(1, 2, 3, 4, runs=1), False),  # one run that fails and fails is not a storm
        (view(1, 2, 3, 4, run_count=5), False),  # 2 runs of 5 are 40 %
        (view(1, 2, 3, 4, run_count=0), True),  # the two are all that there is
        (view(1, 2, 3, -3600), True),  # a clock that is ahead counts as now
    ],
)
def test_a_storm_is_many_ends_of_several_runs_within_minutes(
    pool: PoolView, is_storm: bool
) -> None:
    assert (find_storm(pool, RULE, NOW) is not None) == is_storm


def test_an_attempt_that_is_named_twice_counts_once() -> None:
    pool = view(1, 2, 3)
    assert find_storm(PoolView(pool=POOL, ends=(*pool.ends, *pool.ends)), RULE, NOW) is None


def test_without_a_number_there_are_no_storms() -> None:
    off = StormRule(ends=None)
    assert find_storm(view(*range(500), runs=50), off, NOW) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"ends": 1},
        {"runs": 0},
        {"share": 1.1},
        {"window_s": 0.0},
        {"pause_s": 0.0},
        {"pause_s": 901.0},
    ],
)
def test_a_rule_that_cannot_hold_is_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="storm"):
        StormRule(**changes)  # type: ignore[arg-type]


def test_a_pool_has_the_name_that_was_asked_for_or_its_launchers_devices() -> None:
    assert pool_of(ComputeRequest(launcher="k8s", device_class="h100")) == "k8s/h100"
    assert pool_of(ComputeRequest(launcher="k8s", device_class="h100", pool="spot")) == "spot"


# --- in a decision ---------------------------------------------------------------------------------


def failed(reason: str = "preempted", **changes: object) -> History:
    history = History().declare().open().place().restore().commit(10)
    return history.end(reason, **{"last_step": 12} | changes)  # type: ignore[arg-type]


def stormy(
    history: History,
    *,
    quiet_s: float,
    late_s: float = 1.0,
    policy: RetryPolicy = DEFAULT_POLICY,
) -> Decision:
    """Decide `late_s` after the end, in a pool in which 20 attempts ended `quiet_s` ago."""
    ended_at = history.state.attempts[-1].ended_at
    assert ended_at is not None
    now = max(ended_at + timedelta(seconds=late_s), history.state.head.at)
    storm = find_storm(view(*[quiet_s] * 20, runs=5, at=now), policy.storm, now)
    return decide(history.state, policy, now, [] if storm is None else [storm])


def test_a_retry_waits_for_the_storm_and_a_person_is_alerted_once() -> None:
    history = failed()
    waits = stormy(history, quiet_s=1)
    assert isinstance(waits, Wait)
    assert waits.until is not None
    assert waits.alert is not None
    assert waits.alert.rule == ALERT_POOL_STORM
    assert f"20 attempts of 5 runs ended in pool {POOL}" in waits.alert.text
    history.add(Kind.ALERT, waits.alert)
    again = stormy(history, quiet_s=1)
    assert isinstance(again, Wait)
    assert again.alert is None


def test_it_goes_on_once_the_pool_was_quiet() -> None:
    rule = DEFAULT_POLICY.storm
    assert isinstance(stormy(failed(), quiet_s=rule.pause_s / 2 - 1), Wait)
    assert isinstance(stormy(failed(), quiet_s=rule.pause_s), Retry)


def test_a_pool_that_never_calms_down_holds_a_run_up_for_a_bounded_time() -> None:
    latest_s = DEFAULT_POLICY.storm.pause_s_max
    assert isinstance(stormy(failed(), quiet_s=0, late_s=latest_s - 1), Wait)
    assert isinstance(stormy(failed(), quiet_s=0, late_s=latest_s), Retry)
    # ends of a clock that is a year ahead do not make it longer
    assert isinstance(stormy(failed(), quiet_s=-3e7, late_s=latest_s), Retry)


def test_a_refusal_does_not_wait_for_the_weather() -> None:
    assert isinstance(stormy(failed("code_error", last_step=None), quiet_s=1), Refuse)
    assert isinstance(stormy(failed(device_seconds=1e6), quiet_s=1), Refuse)


def test_those_that_waited_do_not_come_back_in_one_moment() -> None:
    untils = set()
    for number in range(20):
        history = History(f"r-{number}").declare().open().place().end("preempted")
        waits = stormy(history, quiet_s=1)
        assert isinstance(waits, Wait)
        untils.add(waits.until)
    assert len(untils) > 15


def test_a_retry_that_leaves_the_pool_does_not_wait_for_it_to_calm_down() -> None:
    rules = tuple(
        dataclasses.replace(r, remedy=Remedy.OTHER_POOL) if r.reason == "preempted" else r
        for r in DEFAULT_POLICY.rules
    )
    pool = pool_of(failed().state.attempts[-1].opened.compute)
    policy = dataclasses.replace(DEFAULT_POLICY, rules=rules, other_pools={pool: "elsewhere"})
    assert isinstance(stormy(failed(), quiet_s=2.0), Wait)
    assert isinstance(stormy(failed(), quiet_s=2.0, policy=policy), Retry)


# --- of one run ------------------------------------------------------------------------------------


def preempted_again(history: History, count: int) -> History:
    """Add automatic retries that are preempted before they commit anything."""
    debit = Debit(reason="preempted", amount=0.0, fingerprint=None, why="limited in device-hours")
    for _ in range(count):
        history.open(debit=debit).place().restore().end("preempted", last_step=12)
    return history


def soon(history: History) -> Decision:
    ended_at = history.state.attempts[-1].ended_at
    assert ended_at is not None
    return decide(history.state, DEFAULT_POLICY, max(ended_at, history.state.head.at))


def test_a_run_that_is_retried_and_gets_nowhere_is_reported_and_again_when_that_doubled() -> None:
    ends = DEFAULT_POLICY.storm.ends
    assert ends is not None
    history = preempted_again(failed(), ends - 1)
    waits = soon(history)
    assert isinstance(waits, Wait)
    assert waits.alert is None
    waits = soon(preempted_again(history, 1))
    assert isinstance(waits, Wait)
    assert waits.alert is not None
    assert waits.alert.rule == ALERT_RETRY_STORM
    assert f"{ends} retries in a row without a step of progress" in waits.alert.text
    history.add(Kind.ALERT, waits.alert)
    for count in (0, 1, ends - 2):
        waits = soon(preempted_again(history, count))
        assert isinstance(waits, Wait)
        assert waits.alert is None
    waits = soon(preempted_again(history, 1))
    assert isinstance(waits, Wait)
    assert waits.alert is not None
    assert waits.alert.data == {"retries": 2 * ends}


def test_a_verified_commit_or_a_person_ends_the_storm_of_a_run() -> None:
    ends = DEFAULT_POLICY.storm.ends
    assert ends is not None
    history = preempted_again(failed(), ends)
    history.open(cause="manual_retry").place().restore().end("preempted", last_step=12)
    waits = soon(history)
    assert isinstance(waits, Wait)
    assert waits.alert is None
    history = preempted_again(failed(), ends).open().place().restore().commit(20).verify()
    waits = soon(history.end("preempted", last_step=22))
    assert isinstance(waits, Wait)
    assert waits.alert is None
