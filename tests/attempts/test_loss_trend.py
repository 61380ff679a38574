"""Whether a canary's loss falls: the test of the trend and the verdict, by cases counted by hand."""

from __future__ import annotations

import random

import pytest

from tests.seeds import fresh_seeds
from tracks_dagster.attempts.loss_trend import LOSSES_MAX, judge_loss, mann_kendall

FALLING = [3.0, 2.9, 2.5, 2.4, 2.2, 2.1, 2.0, 1.9]


@pytest.mark.parametrize(
    ("values", "s", "p"),
    [
        # all 6 pairs fall; variance 4·3·13/18 = 8.667, Z = 5/2.944 = 1.698
        ([4.0, 3.0, 2.0, 1.0], -6, 0.0894),
        ([1.0, 2.0, 3.0, 4.0], 6, 0.0894),
        # 28 pairs; variance 8·7·21/18 = 65.33, Z = 27/8.083 = 3.340
        (FALLING, -28, 0.000836),
        # pairs: 2>1 falls, 2<3 rises, 1<3 rises: S = 1, so Z = 0
        ([2.0, 1.0, 3.0], 1, 1.0),
        # all tied: variance (4·3·13 - 4·3·13)/18 = 0
        ([1.0, 1.0, 1.0, 1.0], 0, 1.0),
        # 2 2 1 1: 4 pairs fall, 2 are tied; variance (156 - 2·(2·1·9))/18 = 6.667, Z = 3/2.582 = 1.162
        ([2.0, 2.0, 1.0, 1.0], -4, 0.245),
        ([], 0, 1.0),
        ([1.0], 0, 1.0),
    ],
)
def test_mann_kendall_by_hand(values: list[float], s: int, p: float) -> None:
    found_s, found_p = mann_kendall(values)
    assert found_s == s
    assert found_p == pytest.approx(p, rel=0.01)


@pytest.mark.parametrize(
    ("losses", "falls"),
    [
        (FALLING, True),
        (FALLING[::-1], False),  # it rises
        ([2.0] * 20, False),  # flat
        (FALLING[:7], False),  # too few
        # medians of the quarters 1.0035 and 0.9965 of 8: a sure trend of 0.7 %, which is not progress
        ([1.004, 1.003, 1.002, 1.001, 0.999, 0.998, 0.997, 0.996], False),
        # 10 % down in one jump of the last quarter, and no trend before: S = -12, p = 0.067
        ([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.9], False),
        ([3.0, 2.9, 2.5, float("nan"), 2.2, 2.1, 2.0, 1.9], False),
        # a loss below zero falls too: -1.05 → -1.95 is 86 % of |-1.05|
        ([-1.0, -1.1, -1.2, -1.4, -1.6, -1.8, -1.9, -2.0], True),
        ([0.0, 0.0, -0.1, -0.2, -0.3, -0.4, -0.5, -0.6], True),
    ],
)
def test_a_loss_falls_by_how_much_and_by_its_trend(losses: list[float], falls: bool) -> None:
    assert judge_loss(losses, by=0.02, p_max=0.05).falls is falls


def test_the_verdict_says_its_numbers() -> None:
    assert judge_loss(FALLING, by=0.02, p_max=0.05).why == (
        "the median loss of the last quarter of 8 steps is 1.95, 33.9% below the first's 2.95 "
        "(asked: 2%); its trend has p = 0.00084 (asked: below 0.05)"
    )
    assert "7 steps reported a loss, and 8 are" in judge_loss(FALLING[:7], by=0.02, p_max=0.05).why


def test_noise_around_a_level_seldom_falls_and_a_slope_in_it_always_does() -> None:
    draw = random.Random(next(iter(fresh_seeds(1))))
    flat = [[2.0 + draw.gauss(0, 0.05) for _ in range(200)] for _ in range(200)]
    assert sum(judge_loss(each, by=0.02, p_max=0.05).falls for each in flat) <= 5  # 1 in 1000 do
    for each in flat:
        sloped = [loss - 0.4 * at / 200 for at, loss in enumerate(each)]
        assert judge_loss(sloped, by=0.02, p_max=0.05).falls


def test_many_losses_are_tested_by_the_medians_of_blocks() -> None:
    count = 3 * LOSSES_MAX + 7
    assert judge_loss([1 - at / count / 2 for at in range(count)], by=0.02, p_max=0.05).falls
