"""Shuffles of an epoch: each sample once, every order as likely as any other, and never another one."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from tracks_dagster.training.sampling import FeistelPermutation, sorted_permutation


def whole(length: int, *, seed: int = 7, epoch: int = 0) -> list[int]:
    return FeistelPermutation(length, seed=seed, epoch=epoch).at(0, length).tolist()


def test_both_shuffles_are_pinned() -> None:
    """Another order after an upgrade would break every resume, unseen; so neither may change."""
    assert [sorted_permutation(8, seed=7, epoch=epoch).tolist() for epoch in (0, 1)] == [
        [4, 1, 6, 3, 2, 7, 5, 0],
        [3, 1, 6, 2, 5, 4, 0, 7],
    ]
    assert [whole(8, epoch=epoch) for epoch in (0, 1)] == PINNED
    assert FeistelPermutation(9 * 10**9, seed=7, epoch=3).at(10**9, 4).tolist() == PINNED_LARGE


def test_every_length_gives_each_sample_once() -> None:
    for length in range(1, 600):
        assert sorted(whole(length, seed=length)) == list(range(length)), length


@pytest.mark.parametrize("length", [9_999, 10_000, 10_001, 65_536, 99_991])
def test_a_long_shuffle_gives_each_sample_once_however_it_is_cut(length: int) -> None:
    shuffle = FeistelPermutation(length, seed=1, epoch=2)
    at_once = shuffle.at(0, length)
    assert np.array_equal(np.sort(at_once), np.arange(length))
    for first, count in ((0, 1), (1, 7), (length // 2, 1000), (length - 3, 3)):
        assert np.array_equal(shuffle.at(first, count), at_once[first : first + count])


def test_the_longest_shuffle_stays_inside() -> None:
    drawn = FeistelPermutation(1 << 62, seed=1, epoch=0).at((1 << 62) - 5000, 5000)
    assert drawn.min() >= 0
    assert drawn.max() < 1 << 62
    assert len(set(drawn.tolist())) == 5000


@pytest.mark.parametrize("length", [2, 3, 4, pytest.param(5, marks=pytest.mark.full)])
def test_all_orders_of_a_few_samples_are_equally_likely(length: int) -> None:
    """Chi-squared over all length! orders, one key each: within 4 deviations of its mean."""
    keys = 200 * math.factorial(length)
    seen = Counter(tuple(whole(length, epoch=epoch)) for epoch in range(keys))
    degrees = math.factorial(length) - 1
    chi_squared = sum((count - 200) ** 2 / 200 for count in seen.values())
    assert len(seen) == math.factorial(length)
    assert abs(chi_squared - degrees) < 4 * math.sqrt(2 * degrees)


@pytest.mark.parametrize("length", [1_000, 10_000, 100_003])
def test_a_long_shuffle_looks_like_a_random_one(length: int) -> None:
    """Fixed points, rising steps, neighbours that stay so, correlations of place and sample: each
    within 5 deviations of what a random permutation has."""
    order = FeistelPermutation(length, seed=3, epoch=1).at(0, length)
    places = np.arange(length)
    steps = np.diff(order)
    assert np.count_nonzero(order == places) <= 1 + 5  # Poisson with mean 1
    rising = np.count_nonzero(steps > 0)  # mean (n - 1) / 2, variance (n + 1) / 12
    assert abs(rising - (length - 1) / 2) < 5 * math.sqrt((length + 1) / 12)
    assert np.count_nonzero(abs(steps) == 1) <= 2 + 5 * math.sqrt(2)  # Poisson with mean 2
    for lag in (1, 2, math.isqrt(length), math.isqrt(length) + 1, length // 2):
        correlation = np.corrcoef(order[:-lag], order[lag:])[0, 1]
        assert abs(correlation) < 5 / math.sqrt(length - lag), lag
    assert abs(np.corrcoef(places, order)[0, 1]) < 5 / math.sqrt(length)


def test_another_seed_or_epoch_is_another_shuffle() -> None:
    shuffles = {tuple(whole(50, seed=seed, epoch=epoch)) for seed in (1, 2) for epoch in range(9)}
    assert len(shuffles) == 18


PINNED = [[5, 1, 7, 6, 4, 0, 3, 2], [7, 6, 3, 0, 1, 4, 2, 5]]
PINNED_LARGE = [8258550723, 6731850409, 3031680838, 4142980908]
