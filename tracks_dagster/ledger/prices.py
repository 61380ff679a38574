"""What a device hour costs, as a person's file says. Pure: the file comes as located values.

    currency: USD
    per_device_hour:              # an accelerator as the ledger names it, else a device class
      NVIDIA H100 80GB HBM3: 2.49
      cpu: 0.04

Nothing is guessed and nothing skipped: all errors are collected, each with its line. Without a file
there is no money, only device hours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tracks_dagster.track.text import units
from tracks_dagster.track.text.located import Node, Problem, entries, problem
from tracks_dagster.track.text.nearest import unknown
from tracks_dagster.track.text.units import shown

DEVICES_MAX = 100  # in one table; an organisation has a few
_KEYS = ("currency", "per_device_hour")
_CURRENCY = re.compile(r"[A-Z]{3}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """currency: three letters, as of ISO 4217; per_device_hour: by accelerator or device class.

    source: the file that says so, empty where it is not known.
    """

    currency: str
    per_device_hour: Mapping[str, float] = field(default_factory=dict)
    source: str = ""

    def of(self, accelerator: str, device_class: str) -> float | None:
        """Return what an hour of this device costs: by its own name, else by its class."""
        return self.per_device_hour.get(accelerator, self.per_device_hour.get(device_class))


@dataclass(frozen=True, slots=True, kw_only=True)
class Money:
    """Device seconds at their price; wasted: of amount, what did not go into kept steps.

    per_device_hour, amount, wasted: None where it is not known, `unknown_why` says why. source: the
    price table's file. Of an attempt that has not ended, what it cost so far.
    """

    device: str
    currency: str | None = None
    source: str = ""
    per_device_hour: float | None = None
    amount: float | None = None
    wasted: float | None = None
    unknown_why: str | None = None


NO_TABLE = "there is no price table (TRACKS_PRICES, or prices.yaml in TRACKS_HOME)"


def read_prices(root: Node | None) -> tuple[Prices | None, list[Problem]]:
    """Return what the file says, and everything that is wrong with it; then it does not hold."""
    if root is None:
        return None, [
            Problem(line=1, words="the file is empty; write currency and per_device_hour.")
        ]
    problems: list[Problem] = []
    given = dict(entries(root, "The file", problems))
    for key, node in given.items():
        if key not in _KEYS:
            problems.append(problem(node, key, unknown("key", key, _KEYS)))
    if not problems:
        problems += [
            Problem(line=root.line, words=f"{key} is missing.") for key in _KEYS if key not in given
        ]
    if problems:
        return None, problems
    currency = _currency(given["currency"], problems)
    prices = _prices(given["per_device_hour"], problems)
    return Prices(currency=currency, per_device_hour=prices), problems


def _currency(node: Node, problems: list[Problem]) -> str:
    if isinstance(node.value, str) and _CURRENCY.fullmatch(node.value):
        return node.value
    words = f"{shown(node.value)} is no currency; write three letters, for example USD."
    problems.append(problem(node, "currency", words))
    return ""


def _prices(node: Node, problems: list[Problem]) -> dict[str, float]:
    prices: dict[str, float] = {}
    for name, given in entries(node, "per_device_hour", problems):
        try:
            prices[name] = units.number(given.value)
        except ValueError as error:
            problems.append(problem(given, f"per_device_hour.{name}", str(error)))
    if len(prices) > DEVICES_MAX:
        words = f"{len(prices)} devices are more than {DEVICES_MAX}."
        problems.append(problem(node, "per_device_hour", words))
    return prices
