"""How long work takes that came before."""

from __future__ import annotations

import pytest

from tracks_dagster.scheduling.recurrence import NEWEST, expected_s, left_s


def test_the_median_of_the_newest_times_is_expected() -> None:
    assert expected_s([]) is None
    assert expected_s([60.0]) == 60.0
    assert expected_s([60.0, 62.0, 61.0, 900.0, 59.0]) == 61.0  # one that hung moves nothing
    assert expected_s([1.0] * 10 + [9.0] * NEWEST) == 9.0  # code and data changed since


@pytest.mark.parametrize(
    ("expected", "elapsed_s", "left"),
    [
        (None, 50.0, None),
        (100.0, 0.0, 100.0),
        (100.0, 40.0, 60.0),
        (100.0, 100.0, 100.0),  # outlived: as long again
        (100.0, 250.0, 250.0),
        (100.0, -5.0, 105.0),  # a clock that went back
        (0.0, -5.0, 5.0),
    ],
)
def test_what_has_outlived_its_prediction_takes_as_long_again(
    expected: float | None, elapsed_s: float, left: float | None
) -> None:
    assert left_s(expected, elapsed_s) == left
