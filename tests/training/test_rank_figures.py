"""What ranks tell of themselves in a sum: all values by rank, of five steps, in one line."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from tracks_dagster.training.signals.rank_figures import NAMES, OVER_STEPS, RANKS_MAX, RankFigures

STEPS = [0.3, 0.1, 0.2, 9.0, 0.2]  # the median is 0.2


def due_figures(
    rank: int, world_size: int, device: dict[str, Any], *, own_s: float | None
) -> list[float]:
    figures = RankFigures(rank=rank, world_size=world_size)
    for step_s in STEPS:
        assert figures.due(device) == []
        figures.take(step_s=step_s, own_s=own_s, data_s=step_s / 2)
    return figures.due(device)


def summed(parts: list[list[float]]) -> list[float]:
    return [sum(column) for column in zip(*parts, strict=True)]


def test_the_sum_has_the_median_of_every_rank_in_its_place() -> None:
    devices: list[dict[str, Any]] = [{"util_percent": 90.0, "rss_bytes": 2**40 + 1}, {}, {}]
    parts = [due_figures(rank, 3, devices[rank], own_s=rank or None) for rank in range(3)]
    assert RankFigures(rank=0, world_size=3).fields(summed(parts)) == {
        "step_s": [0.2, 0.2, 0.2],
        "own_s": [None, 1, 2],
        "data_s": [0.1, 0.1, 0.1],
        "util": [90.0, None, None],
        "rss_bytes": [2**40 + 1, None, None],  # of the device's bytes no rank knows
    }


def test_steps_are_reported_once_and_together() -> None:
    figures = RankFigures(rank=0, world_size=1)
    lengths = []
    for _ in range(4 * OVER_STEPS):
        figures.take(step_s=1.0, own_s=None, data_s=0.0)
        lengths.append(len(figures.due({})))
    due = [index for index, length in enumerate(lengths) if length]
    assert due[0] == OVER_STEPS - 1
    assert {later - earlier for earlier, later in pairwise(due)} == {OVER_STEPS}
    assert {lengths[index] for index in due} == {len(NAMES)}


@pytest.mark.parametrize(
    ("world_size", "length"), [(RANKS_MAX, len(NAMES) * RANKS_MAX), (RANKS_MAX + 1, 0)]
)
def test_a_gang_that_is_too_large_tells_nothing(world_size: int, length: int) -> None:
    assert len(due_figures(0, world_size, {}, own_s=None)) == length
