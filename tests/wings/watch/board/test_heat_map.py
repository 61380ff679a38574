"""A heat map shows the slow rank, names it in words, and stays small for a healthy gang."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pytest

from tracks_dagster.wings.watch.board.heat_map import (
    COLUMNS_MAX,
    DATA_WAIT,
    DEVICE_USE,
    OWN_TIME,
    RANKS_MAX,
    HeatMap,
    Scale,
    heat_map,
)

Line = Sequence[tuple[int, float]]


def gang(
    ranks: int, *, lines: int = 40, slow: Mapping[int, float] | None = None
) -> dict[int, Line]:
    """Return a value every 5 steps: 0.1 s of each rank, of `slow` ones so many times as much."""
    factors = slow or {}
    return {
        rank: [(5 * n, 0.1 * factors.get(rank, 1.0)) for n in range(1, lines + 1)]
        for rank in range(ranks)
    }


def drawn(values: Mapping[int, Line], scale: Scale = OWN_TIME) -> HeatMap:
    """Return the map of these values; rank r is on node-(r // 8), cuda:(r % 8)."""
    places = {rank: f"node-{rank // 8}, cuda:{rank % 8}" for rank in values}
    found = heat_map(values, scale, places)
    assert found is not None
    return found


def boxes(found: HeatMap, css: str) -> list[str]:
    """Return the rows of the boxes of a class, by their y."""
    path = re.search(rf'<path class="{css}" d="([^"]*)"', found.svg)
    return [] if path is None else re.findall(r"M[\d.]+ (\d+)h", path[1])


def test_a_healthy_gang_is_a_calm_field_of_a_few_hundred_bytes() -> None:
    found = drawn(gang(64))
    assert "<path" not in found.svg
    assert found.words == ()
    assert len(found.svg) < 2500  # mostly labels of rows


def test_the_slow_rank_is_one_hot_row_and_is_named_with_its_device() -> None:
    found = drawn(gang(8, slow={5: 2.0}))
    assert boxes(found, "h4") == ["70"]  # one box as wide as the map: row 5, of 14 units each
    assert found.words == (
        "rank 5 (node-0, cuda:5): 2.00 × the gang's median over its newest steps",
    )
    assert '<text class="end hot"' in found.svg


@pytest.mark.parametrize(
    ("factor", "css"),
    [
        (1.09, None),
        (1.11, "h1"),
        (1.21, "h2"),
        (1.32, "h2"),
        (1.34, "h3"),
        (1.99, "h3"),
        (2.1, "h4"),
    ],
)
def test_a_colour_begins_at_its_edge(factor: float, css: str | None) -> None:
    found = drawn(gang(8, slow={5: factor}))
    assert [name for name in ("h1", "h2", "h3", "h4") if boxes(found, name)] == (
        [css] if css else []
    )


def test_one_slow_step_is_drawn_and_names_nobody() -> None:
    values = {rank: list(line) for rank, line in gang(8).items()}
    values[3][-1] = (200, 0.5)
    found = drawn(values)
    assert boxes(found, "h4") == ["42"]
    assert found.words == ()


def test_a_spike_among_more_steps_than_columns_is_not_lost() -> None:
    values = {rank: list(line) for rank, line in gang(4, lines=10 * COLUMNS_MAX).items()}
    values[2][777] = (5 * 778, 0.9)
    assert boxes(drawn(values), "h4")


def test_no_value_is_not_a_calm_value() -> None:
    values = gang(8)
    values[6] = values[6][:20]  # its newest half is not known
    assert boxes(drawn(values), "none") == ["84"]


def test_values_that_are_not_numbers_are_left_out() -> None:
    values = {0: [(5, 0.1), (10, float("nan"))], 1: [(5, float("inf")), (10, 0.1)]}
    assert "nan" not in drawn(values).svg


def test_of_very_many_ranks_the_hottest_are_drawn_and_it_is_said() -> None:
    found = drawn(gang(1000, slow={999: 3.0}))
    assert found.words[-1] == f"The {RANKS_MAX} hottest of 1000 ranks are drawn."
    assert ">999<" in found.svg


def test_data_is_judged_as_a_share_and_a_device_by_how_little_it_does() -> None:
    shares = {rank: [(5, 0.3 if rank == 1 else 0.01)] for rank in range(4)}
    assert drawn(shares, DATA_WAIT).words == (
        "rank 1 (node-0, cuda:1): 30 % of its newest steps is a wait for data",
    )
    use = {rank: [(5, -20.0 if rank == 2 else -95.0)] for rank in range(4)}
    assert drawn(use, DEVICE_USE).words == (
        "rank 2 (node-0, cuda:2): 20 % utilised over its newest steps",
    )


def test_without_a_value_there_is_no_map() -> None:
    assert heat_map({}, OWN_TIME, {}) is None
    assert heat_map({0: []}, OWN_TIME, {}) is None
