"""What classes, teams and owners had of the devices, from the ledger: on every machine, evals included.

The ledger may be seconds behind, which moves no share and no cap by more than that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from operator import attrgetter
from pathlib import Path

from tracks_dagster.ledger.ledger_views import without_comments
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.ledger.prices import Prices
from tracks_dagster.ledger.timeline import micros
from tracks_dagster.scheduling.model import Usage
from tracks_dagster.scheduling.policy import EVAL, Order, SchedulingPolicy
from tracks_dagster.scheduling.usage import (
    HALF_LIVES_MAX,
    Stay,
    decayed_device_s,
    midnight_s,
    money_since,
)
from tracks_dagster.track.records import Json

_US = 1_000_000


def read_usage(
    ledger: Ledger, policy: SchedulingPolicy, *, now: datetime, prices: Prices | None
) -> Usage:
    """Return as much as `policy` asks for: shares for a fair order, money where there are caps.

    prices: without a table nothing costs money that is known. Raises LedgerError.
    """
    usage = Usage()
    if policy.order is Order.FAIR:
        usage = replace(usage, by_team=read_shares(ledger, now=now, half_life_s=policy.half_life_s))
    if prices is None or not _has_caps(policy):
        return usage
    now_s = micros(now) / _US
    since_s = midnight_s(now_s)
    stays = _stays_today(ledger, policy, prices, since_s=since_s, now_s=now_s)
    by_class, by_team, by_owner = (
        money_since(stays, attrgetter(key), since_s=since_s, now_s=now_s)
        for key in ("workload_class", "team", "owner")
    )
    return replace(usage, money_by_class=by_class, money_by_team=by_team, money_by_owner=by_owner)


def read_shares(ledger: Ledger, *, now: datetime, half_life_s: float) -> dict[str, float]:
    """Return the device seconds of each team by now, decayed. Raises LedgerError.

    Attempts of less than an hour are read as sums of an hour each: with a half-life of a week that
    moves a share by less than 0.5 %, and as few rows are read of 100 000 of them as of some hundred.
    """
    now_us = micros(now)
    since_us = now_us - int(HALF_LIVES_MAX * half_life_s * _US)
    rows = ledger.query(_sql("shares"), {"now_us": now_us, "since_us": since_us})
    stays = (
        Stay(
            team=row["team"],
            devices=row["device_us"] / max(1, row["end_us"] - row["begin_us"]),
            begin_s=row["begin_us"] / _US,
            end_s=row["end_us"] / _US,
        )
        for row in rows
    )
    return decayed_device_s(stays, now_s=now_us / _US, half_life_s=half_life_s)


def _stays_today(
    ledger: Ledger, policy: SchedulingPolicy, prices: Prices, *, since_s: float, now_s: float
) -> list[Stay]:
    asked = {"now_us": int(now_s * _US), "since_us": int(since_s * _US)}
    return [_stay(row, policy, prices) for row in ledger.query(_sql("today"), asked)]


def _stay(row: Mapping[str, Json], policy: SchedulingPolicy, prices: Prices) -> Stay:
    return Stay(
        team=row["team"],
        owner=row["owner"],
        workload_class=EVAL if row["is_eval"] else policy.class_name(row["workload_class"]),
        devices=row["devices"],
        begin_s=row["begin_us"] / _US,
        end_s=row["end_us"] / _US,
        per_hour=prices.of(row["accelerator"], row["device_class"], pool=row["pool"]),
    )


def _has_caps(policy: SchedulingPolicy) -> bool:
    allowed = (*policy.teams.values(), *policy.owners.values())
    caps = [each.money_per_day for each in policy.classes.values()]
    caps += [each.money_per_day for each in allowed]
    return any(cap is not None for cap in caps)


def _sql(name: str) -> str:
    text = Path(__file__).with_name("sql").joinpath(f"usage_{name}.sql").read_text("utf-8")
    return without_comments(text)
