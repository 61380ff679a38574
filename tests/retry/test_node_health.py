"""Which node stands out: worked examples of the rule, and what holds for any history."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bodies import BEGIN
from tests.pools import HOUR_S, PoolHistory
from tracks_dagster.retry.node_health import (
    QUARANTINED_MAX,
    DueQuarantine,
    NodeRule,
    due_quarantine,
    healths,
    quarantine_length_s,
)
from tracks_dagster.track.reasons import TerminationReason as R

RULE = NodeRule()
DAY = timedelta(days=1)


def due(history: PoolHistory, rule: NodeRule = RULE) -> DueQuarantine | None:
    return due_quarantine(history.state, rule, history.at)


def test_the_second_strike_of_one_node_in_ten_quarantines_it_for_a_day() -> None:
    history = PoolHistory().strike("n-1")
    assert due(history) is None
    found = due(history.strike("n-1"))
    assert found is not None
    assert (found.node, found.number, found.counted_seqs) == ("n-1", 1, (0, 1))
    assert found.until_at == history.at + DAY
    # the others: none in 90 h; (0 + 0.5) / 90 × 10
    assert "2 strikes in 10 h of work, where 0.056 are expected" in found.why
    assert "gpu_hardware of run-1/a01 (record 1)" in found.why


# (its strikes, its hours, the others' strikes, the pool's hours) → due
# expected at the others' rate: (their strikes + ½) / their hours × its hours
RATES = [
    ((2, 10, 0, 100), True),  # 0.5 / 90 × 10 = 0.06; 2 ≥ 3 × 0.06
    ((2, 5000, 10, 15_000), False),  # busy: 10.5 / 10 000 × 5000 = 5.25
    ((2, 10, 14, 80), False),  # all fail alike: 14.5 / 70 × 10 = 2.07; 2 < 6.2
    ((7, 10, 14, 80), True),  # 7 ≥ 6.2
    ((2, 0, 5, 80), True),  # it fails before it has worked
    ((2, 80, 0, 80), False),  # nothing to compare it with
]


@pytest.mark.parametrize(("given_", "expected"), RATES)
def test_a_node_is_blamed_for_its_rate_and_not_for_being_busy(
    given_: tuple[int, int, int, int], expected: bool
) -> None:
    own, hours, others, pool_hours = given_
    history = PoolHistory()
    for number in range(others):
        history.strike(f"other-{number}")
    for _ in range(own):
        history.strike("n-1", exposure_s=hours * HOUR_S, pool_exposure_s=pool_hours * HOUR_S)
    found = due(history)
    assert (found is not None and found.node == "n-1") == expected


def test_silent_corruption_quarantines_at_once() -> None:
    found = due(PoolHistory().strike("n-1", reason="silent_corruption"))
    assert found is not None
    assert "the first is enough" in found.why


def test_reasons_that_the_policy_does_not_name_count_for_nothing() -> None:
    history = PoolHistory().strike("n-1").strike("n-1")
    assert due(history, replace(RULE, reasons=(R.NODE_FAILURE,), at_once=())) is None
    assert due(history, replace(RULE, strikes=None)) is None


def test_strikes_leave_the_window() -> None:
    history = PoolHistory().strike("n-1")
    history.at += timedelta(seconds=RULE.window_s)
    assert due(history.strike("n-1")) is None
    assert due(history.strike("n-1")) is not None


def test_a_node_that_came_back_goes_for_twice_as_long_at_its_next_strike() -> None:
    history = PoolHistory().strike("n-1").strike("n-1").quarantine("n-1", seqs=(0, 1))
    assert due(history) is None
    history.at += DAY + timedelta(hours=1)
    assert due(history) is None  # old strikes alone do not bring it back
    found = due(history.strike("n-1"))
    assert found is not None
    assert (found.number, found.until_at) == (2, history.at + 2 * DAY)


def test_a_release_forgives_strikes_and_length() -> None:
    history = PoolHistory().strike("n-1").strike("n-1").quarantine("n-1", seqs=(0, 1))
    history.release("n-1").strike("n-1")
    assert due(history) is None
    found = due(history.strike("n-1"))
    assert found is not None
    assert (found.number, found.counted_seqs) == (1, (4, 5))


def test_what_a_person_quarantined_does_not_count_as_an_offence() -> None:
    history = PoolHistory().quarantine("n-1", for_s=1).strike("n-1").strike("n-1")
    found = due(history)
    assert found is not None
    assert found.number == 1


# number → days: doubled up to 14
LENGTHS = [(1, 1), (2, 2), (3, 4), (4, 8), (5, 14), (500, 14)]


@pytest.mark.parametrize(("number", "days"), LENGTHS)
def test_repeat_offenders_go_for_longer_up_to_a_bound(number: int, days: int) -> None:
    assert quarantine_length_s(RULE, number) == days * 86_400


# nodes → how many the rule may take: a quarter, rounded down
SHARES = [(1, 0), (3, 0), (4, 1), (7, 1), (8, 2), (10_000, QUARANTINED_MAX)]


@pytest.mark.parametrize(("nodes", "allowed"), SHARES)
def test_a_pool_never_loses_more_than_its_share(nodes: int, allowed: int) -> None:
    history = PoolHistory()
    for number in range(allowed + 1):
        history.strike(f"n-{number}", reason="silent_corruption", pool_node_count=nodes)
    for _ in range(allowed):
        found = due(history)
        assert found is not None
        history.quarantine(found.node, seqs=found.counted_seqs)
    assert due(history) is None
    held = [
        health.spared_by for health in healths(history.state, RULE, history.at) if health.is_due
    ]
    assert len(held) == 1
    assert f"{allowed} may be" in (held[0] or "")


def test_nodes_that_are_gone_do_not_raise_the_share() -> None:
    history = PoolHistory()
    for number in range(100):  # a cluster that gives every node a new name
        history.strike(f"gone-{number}", pool_node_count=4)
    history.at += timedelta(seconds=RULE.window_s)
    for node in ("n-1", "n-2"):
        history.strike(node, reason="silent_corruption", pool_node_count=4)
    found = due(history)
    assert found is not None
    history.quarantine(found.node, seqs=found.counted_seqs)
    assert due(history) is None  # one of four


STRIKES = st.lists(st.sampled_from(("n-1", "n-2", "n-3")), max_size=12)


@given(strikes=STRIKES)
def test_one_more_strike_never_makes_a_node_less_due(strikes: list[str]) -> None:
    history = PoolHistory()
    for node in ["n-1", *strikes]:
        history.strike(node)

    def is_due() -> bool:
        return next(h.is_due for h in healths(history.state, RULE, history.at) if h.node == "n-1")

    before = is_due()
    history.strike("n-1")
    assert is_due() or not before


@given(strikes=STRIKES)
def test_deciding_until_nothing_is_due_ends_and_keeps_the_share(strikes: list[str]) -> None:
    history = PoolHistory()
    for node in ["n-1", *strikes]:
        history.strike(node, reason="silent_corruption")
    for _ in range(4):
        found = due(history)
        if found is None:
            break
        assert found.until_at > history.at > BEGIN
        history.quarantine(found.node, seqs=found.counted_seqs)
    assert due(history) is None
    assert len(history.state.quarantined_at(history.at)) <= 2  # a quarter of ten


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"strikes": 0}, "from 1 strike on"),
        ({"window_s": 0.0}, "longer than nothing"),
        ({"share": 1.5}, "0 to 1"),
        ({"rate_factor": -1.0}, "0 or more"),
        ({"quarantine_s": 2.0, "quarantine_s_max": 1.0}, "not above its maximum"),
        ({"reasons": (R.NODE_FAILURE,)}, "add silent_corruption to reasons"),
    ],
)
def test_a_rule_that_cannot_hold_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(RULE, **changes)  # type: ignore[arg-type]
