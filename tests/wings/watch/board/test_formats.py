"""Numbers as a tired person reads them at a glance."""

from __future__ import annotations

import math

import pytest

from tracks_dagster.retry.caps import Cost
from tracks_dagster.wings.watch.board import formats
from tracks_dagster.wings.watch.board.fleet import sparkline


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (math.nan, "NaN"),
        (-math.inf, "-∞"),
        (0, "0"),
        (1240, "1\u202f240"),
        (-1240000.0, "-1\u202f240\u202f000"),
        (2.58468, "2.585"),
        (12345.678, "12\u202f346"),
        (0.00312345, "0.003123"),
        (0.000031234, "3.123e-05"),
        (1.5e12 + 0.5, "1.5e+12"),
    ],
)
def test_a_number_has_four_digits_that_count(value: float | None, shown: str) -> None:
    assert formats.number(value) == shown


def test_what_is_not_known_is_a_dash_and_no_zero() -> None:
    assert formats.of_steps(None, None) == "–"
    assert formats.of_steps(None, 5000) == "0 / 5\u202f000"
    assert formats.pace(0.0) == "–"
    assert formats.left(None) == "–"
    assert formats.money(None) == "–"
    assert formats.money(Cost(amount=0.0, currency="EUR", unpriced_s=9.0)) == "–"
    assert formats.money(Cost(amount=0.0, currency="EUR")) == "0.00 EUR"
    assert formats.share(None) == "–"


def test_a_pace_is_in_the_unit_that_says_more() -> None:
    assert formats.pace(0.08) == "12.50 steps/s"
    assert formats.pace(3.2) == "3.200 s/step"


@pytest.mark.parametrize("values", [[], [1.0], [math.nan, 1.0]])
def test_a_small_curve_takes_two_values(values: list[float]) -> None:
    assert sparkline(values) == ""


def test_a_small_curve_falls_as_its_values_do() -> None:
    assert sparkline([2.0, math.nan, 1.0]) == "M0 2l96 18"
    assert sparkline([1.0, 1.0]) == "M0 2l96 0"
