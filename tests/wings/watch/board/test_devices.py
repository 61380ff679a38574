"""The device of every rank, a few ranks a page."""

from __future__ import annotations

import pytest

from tracks_dagster.wings.watch.board.devices import RANKS_MAX, devices_page, ranks_from
from tracks_dagster.wings.watch.board.heat_map import Values

GIB = 2**30
STEPS = range(0, 100, 10)


def everywhere(*values: float) -> Values:
    """Return values that stay, a rank each."""
    return {rank: [(step, value) for step in STEPS] for rank, value in enumerate(values)}


def test_each_rank_shows_its_newest_figures_with_units() -> None:
    found = {
        "util_percent": everywhere(97.25, 3.0),
        "memory_bytes": everywhere(70.0 * GIB, 79.5 * GIB),
        "memory_total_bytes": everywhere(80.0 * GIB, 80.0 * GIB),
        "power_w": everywhere(612.4, 88.0),
        "temperature_c": everywhere(61.0, 93.0),
    }
    page = devices_page("r-1", found, {0: "node-0, cuda:0", 1: "node-0, cuda:1"}, range(2), 2)
    first = [cell.text for cell in page.section.rows[0]]
    assert first[:6] == ["0", "node-0, cuda:0", "97.20 %", "70 GiB", "612.4 W", "61 °C"]
    assert page.section.rows[0][3].soft == "of 80 GiB"
    assert first[6:] == ["–", "–"]
    words = " ".join(word for each in page.maps for word in each.words)
    assert "rank 1 (node-0, cuda:1): 3 % utilised" in words
    assert "rank 1 (node-0, cuda:1): 93 °C" in words
    assert "rank 1 (node-0, cuda:1): 99 % of its memory is in use" in words
    assert "rank 0" not in words


def test_what_no_driver_says_is_a_dash_with_the_reason() -> None:
    page = devices_page("r-1", {"rss_bytes": everywhere(GIB)}, {}, range(1), 1)
    assert [cell.text for cell in page.section.rows[0]][2:6] == ["–"] * 4
    assert page.section.rows[0][6].text == "1 GiB"
    assert "nvidia-ml-py" in page.words
    assert page.maps == ()


@pytest.mark.parametrize(
    ("first", "world_size", "ranks"),
    [(0, 4, range(4)), (17, 64, range(16, 32)), (999, 20, range(16, 20)), (5, 0, range(0))],
)
def test_a_page_has_a_few_ranks(first: int, world_size: int, ranks: range) -> None:
    assert ranks_from(first, world_size) == ranks
    assert len(ranks) <= RANKS_MAX


def test_a_large_gang_has_several_pages() -> None:
    page = devices_page("r-1", {}, {}, ranks_from(32, 40), 40)
    assert [first for _, first in page.pages] == [0, 16, 32]
    assert page.pages[-1][0] == "ranks 32 to 39"
    assert devices_page("r-1", {}, {}, range(4), 4).pages == ()
