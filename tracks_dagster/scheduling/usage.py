"""What classes, teams and owners had of the devices: for fair shares and caps on money. Pure.

A fair share counts device seconds, each of which counts half after the policy's half-life.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

DAY_S = 86_400.0
HALF_LIVES_MAX = 10  # what is older counts less than 0.1 %, and is not read


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """An attempt or an eval on its devices, from begin_s to end_s; of one that is still there, to now.

    devices: how many, a mean where several are one. per_hour: the price of one of them, None where the
    price table names none.
    """

    team: str
    owner: str = ""
    workload_class: str = ""
    devices: float = 1.0
    begin_s: float = 0.0
    end_s: float = 0.0
    per_hour: float | None = None


def decayed_device_s(
    stays: Iterable[Stay], *, now_s: float, half_life_s: float
) -> dict[str, float]:
    """Return the device seconds of each team, those of one half-life ago counted half.

    With a half-life of an hour, two devices held for the last hour count 2 × 3600 × 0.5 / ln 2 = 5194
    device seconds: the integral of 2^(-age / 3600). A stay that seems to end after now, by another
    machine's clock, ends now.
    """
    rate = math.log(2) / half_life_s
    found: dict[str, float] = {}
    for stay in stays:
        end_s = min(stay.end_s, now_s)
        begin_s = min(stay.begin_s, end_s)
        weighed_s = (math.exp(-rate * (now_s - end_s)) - math.exp(-rate * (now_s - begin_s))) / rate
        found[stay.team] = found.get(stay.team, 0.0) + stay.devices * weighed_s
    return found


def money_since(
    stays: Iterable[Stay], of: Callable[[Stay], str], *, since_s: float, now_s: float
) -> dict[str, float]:
    """Return the money that each group spent from since_s to now_s; of: the group of a stay.

    Of a stay that began before, only the rest; devices without a price cost nothing that is known.
    """
    found: dict[str, float] = {}
    for stay in stays:
        seconds = max(0.0, min(stay.end_s, now_s) - max(stay.begin_s, since_s))
        money = stay.devices * seconds / 3600 * (stay.per_hour or 0.0)
        found[of(stay)] = found.get(of(stay), 0.0) + money
    return found


def midnight_s(now_s: float) -> float:
    """Return when the day of `now_s` began in UTC; seconds since 1970."""
    return now_s - now_s % DAY_S
