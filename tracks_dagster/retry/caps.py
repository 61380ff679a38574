"""Whether a run, or a class, team or owner today, has spent the money or the time that it may. Pure.

Device seconds are counted as they are recorded, at today's prices; of an open attempt from when its
supervisor took the devices that it was given, on a cluster from its placement. A device without a price
costs nothing that is known, and the words say so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from tracks_dagster.ledger.prices import NO_TABLE, Prices
from tracks_dagster.ledger.timeline import accelerator_of
from tracks_dagster.retry.stage_time import device_s
from tracks_dagster.scheduling.model import Usage
from tracks_dagster.scheduling.policy import SchedulingPolicy
from tracks_dagster.track.bodies import MANUAL, ComputeRequest
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.placement import pool_of
from tracks_dagster.track.states.run_state import AttemptState, RunState
from tracks_dagster.track.text.units import cost_text, money

HOUR_S = 3600.0


def check_cap(
    amount: float,
    prices: Prices | None,
    compute: ComputeRequest | None,
    *,
    is_by_policy: bool = False,
) -> None:
    """Raise InvalidInput for a cap in money that is not one, or that nothing would ever meet.

    compute: of the run; None where it is not known yet. is_by_policy: nobody asked for it.
    """
    if not (math.isfinite(amount) and amount > 0):
        raise InvalidInput(
            f"A max cost of {amount:g} is not an amount of money; write more than 0."
        )
    source = " (policy.yaml: cost.max_cost, or money of its stage)" if is_by_policy else ""
    doing = f"A max cost of {money(amount)}{source} cannot be kept"
    if prices is None:
        raise InvalidInput(f"{doing}: {NO_TABLE}; docs/accounting.md shows one.")
    device_class, pool = ("", "") if compute is None else (compute.device_class, pool_of(compute))
    if compute is not None and prices.of(device_class, device_class, pool=pool) is None:
        raise InvalidInput(
            f"{doing}: {prices.source} has no price of the device class {device_class!r}; it has "
            f"{', '.join(prices.per_device_hour) or 'none'}. Add it under per_device_hour."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What the attempts of a run cost so far. unpriced_s: device seconds without a price."""

    amount: float
    currency: str
    unpriced_s: float = 0.0


def cost_of(state: RunState, prices: Prices, now: datetime) -> Cost:
    """Return what all attempts cost by `now`, each from when it was given its devices.

    The record of an end counts from the placement on, so that what was before it is added.
    """
    amount = unpriced_s = 0.0
    for attempt in state.attempts:
        seconds = _waited_s(attempt, now) + device_s(attempt, now, attempt.placed_at)
        compute = attempt.opened.compute
        price = prices.of(accelerator_of(attempt), compute.device_class, pool=pool_of(compute))
        if price is None:
            unpriced_s += seconds
        else:
            amount += seconds / HOUR_S * price
    return Cost(amount=amount, currency=prices.currency, unpriced_s=unpriced_s)


def max_cost_of(state: RunState) -> float | None:
    """Return the cap in force: as a person last set it for an attempt, else as declared."""
    given = [a.opened.max_cost for a in state.attempts if a.opened.max_cost is not None]
    return given[-1] if given else state.declared.max_cost


def over_run_cap(state: RunState, prices: Prices, now: datetime) -> str | None:
    """Say that the run has spent what it may; None while it has not, or has no cap."""
    cap = max_cost_of(state)
    if cap is None:
        return None
    cost = cost_of(state, prices, now)
    if cost.amount < cap:
        return None
    return (
        f"{cost_text(cost.amount)} of at most {cost_text(cap)} {cost.currency} spent (its max cost; "
        f"prices: {prices.source}){_unpriced(cost)}"
    )


def over_day_cap(
    state: RunState, scheduling: SchedulingPolicy, usage: Usage, currency: str
) -> str | None:
    """Say that its class, team or owner has spent what it may today; None while none has.

    An attempt that a person opened continues: the cap was met by the one before it.
    """
    attempt = state.last_attempt
    if attempt is not None and attempt.opened.cause == MANUAL:
        return None
    for whose, cap, spent in _day_caps(state, scheduling, usage):
        if cap is not None and spent >= cap:
            return (
                f"{cost_text(spent)} of at most {cost_text(cap)} {currency} spent by {whose} since "
                "midnight UTC (money_per_day in policy.yaml)"
            )
    return None


def has_day_caps(scheduling: SchedulingPolicy) -> bool:
    """Whether the policy caps the money of a day at all."""
    caps = [each.money_per_day for each in scheduling.classes.values()]
    allowed = (*scheduling.teams.values(), *scheduling.owners.values())
    return any(cap is not None for cap in (*caps, *(each.money_per_day for each in allowed)))


def _day_caps(
    state: RunState, scheduling: SchedulingPolicy, usage: Usage
) -> Iterator[tuple[str, float | None, float]]:
    declared = state.declared
    name = declared.workload_class or scheduling.default_class
    team, owner = scheduling.teams.get(declared.team), scheduling.owners.get(declared.owner)

    def spent(by: Mapping[str, float], key: str) -> float:
        return by.get(key, 0.0)

    of_class = scheduling.class_of(name).money_per_day
    yield f"class {name}", of_class, spent(usage.money_by_class, name)
    if team is not None:
        yield f"team {declared.team}", team.money_per_day, spent(usage.money_by_team, declared.team)
    if owner is not None:
        of_owner = spent(usage.money_by_owner, declared.owner)
        yield f"owner {declared.owner}", owner.money_per_day, of_owner


def _waited_s(attempt: AttemptState, now: datetime) -> float:
    """Return the device seconds from its claim of devices until it was placed on them."""
    until = attempt.placed_at or attempt.ended_at or now
    if attempt.claimed_at is None:
        return 0.0
    return attempt.devices * max(0.0, (min(until, now) - attempt.claimed_at).total_seconds())


def _unpriced(cost: Cost) -> str:
    if cost.unpriced_s <= 0:
        return ""
    return f"; {cost.unpriced_s / HOUR_S:.2f} device-hours beside it have no price"
