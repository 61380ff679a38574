"""A price table is taken as it stands, or refused with every error and its line."""

from __future__ import annotations

import pytest

from tracks_dagster.ledger.effects.price_table import read_prices
from tracks_dagster.ledger.prices import Prices
from tracks_dagster.track.effects.settings_file import parse_settings
from tracks_dagster.track.errors import SettingsError

GOOD = """
currency: USD
per_device_hour:
  NVIDIA H100 80GB HBM3: 2.49
  cpu: 0.04
"""


def problems(text: str) -> list[tuple[int, str]]:
    file = parse_settings(text, "The file")
    with pytest.raises(SettingsError):
        read_prices(file)
    return [(each.line, each.words) for each in sorted(file.problems)]


def test_a_table_gives_a_price_to_each_device() -> None:
    prices = read_prices(parse_settings(GOOD, "The file"))
    per_hour = {"NVIDIA H100 80GB HBM3": 2.49, "cpu": 0.04}
    assert prices == Prices(currency="USD", per_device_hour=per_hour)


def test_a_pool_may_have_prices_of_its_own() -> None:
    prices = read_prices(parse_settings(GOOD + "pools: {spot: {cpu: 0.01}}", "The file"))
    assert prices.of("cpu", "cpu", pool="spot") == 0.01
    assert prices.of("cpu", "cpu", pool="other") == prices.of("cpu", "cpu", pool=None) == 0.04
    assert prices.of("NVIDIA H100 80GB HBM3", "h100", pool="spot") == 2.49  # as anywhere
    assert prices.on_spot("cpu", "cpu") == 0.01


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 1, "currency is missing: write three letters"),
        ("", 1, "per_device_hour is missing"),
        ("currency: USD", 1, "per_device_hour is missing"),
        ("currencies: USD\nper_device_hour: {cpu: 1}", 1, "did you mean currency?"),
        ("currency: dollars\nper_device_hour: {cpu: 1}", 1, "three letters, for example USD"),
        ("currency: USD\nper_device_hour:\n  cpu: cheap", 3, "'cheap' is not a number from 0"),
        ("currency: USD\nper_device_hour:\n  cpu: -1", 3, "-1 is not a number from 0"),
        ("currency: USD\nper_device_hour: 3", 2, "3 is given where keys with values belong"),
        ("currency: USD\nper_device_hour: {cpu: 1}\npools: {spot: 3}", 3, "3 is given where keys"),
        (
            "currency: USD\nper_device_hour: {cpu: 1}\npools:\n  s:\n    cpu: -1",
            5,
            "-1 is not a number",
        ),
        ("- currency", 1, "a list is given where keys with values belong"),
    ],
)
def test_what_is_wrong_is_reported_with_its_line(text: str, line: int, words: str) -> None:
    found = problems(text)
    assert any(at == line and words in said for at, said in found), found


def test_all_that_is_wrong_is_reported_at_once() -> None:
    found = problems("currency: x\nper_device_hour:\n  cpu: a\n  gpu: b")
    assert [line for line, _ in found] == [1, 3, 4]
