"""The devices of a machine that nobody holds, tallied by the day. Pure.

The daemon looks every half minute. The time since the look before counts as what this look finds:
leased to a gang or an eval, of this home or another, in use by others (a notebook, a stranger), or held
by nobody.
Time in which nobody looked is not counted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from tracks_dagster.attempts.machine import UNNAMED_BYTES_MIN, Devices
from tracks_dagster.ledger.prices import Prices
from tracks_dagster.track.records import format_time, parse_time

SEE_EVERY_S = 30.0
GAP_S_MAX = 120.0  # between two looks; a longer one is time in which nobody looked


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceDay:
    """Seconds of one device: seen in all, and of these in use by others and held by nobody.

    idle_since: since when every look found it held by nobody; None where the newest did not.
    """

    model: str
    seen_s: float = 0.0
    others_s: float = 0.0
    idle_s: float = 0.0
    idle_since: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleDay:
    """What was seen of a machine's devices on one day (UTC). devices: by UUID."""

    day: str
    node: str
    seen_at: str | None = None
    devices: Mapping[str, DeviceDay] = field(default_factory=dict)


def tallied(day: IdleDay, found: Devices, leased: Collection[str], now: datetime) -> IdleDay:
    """Return the day with this look. leased: devices, or slices of them, whose leases hold."""
    passed_s = 0.0
    if day.seen_at is not None:
        passed_s = (now - parse_time(day.seen_at)).total_seconds()
    is_gap = not 0.0 <= passed_s <= GAP_S_MAX
    if is_gap:
        passed_s = 0.0
    used = {holder.uuid for holder in found.holders}
    here = {gpu.uuid for gpu in found.gpus}
    devices = {
        uuid: device if uuid in here else replace(device, idle_since=None)
        for uuid, device in day.devices.items()
    }
    for gpu in found.gpus:
        before = devices.get(gpu.uuid, DeviceDay(model=gpu.name))
        is_leased = not {gpu.uuid, *gpu.slices}.isdisjoint(leased)
        is_used = gpu.uuid in used or (gpu.used_bytes or 0) >= UNNAMED_BYTES_MIN
        is_idle = not (is_used or is_leased)
        since = None if is_gap else before.idle_since
        devices[gpu.uuid] = replace(
            before,
            idle_since=(since or format_time(now)) if is_idle else None,
            seen_s=before.seen_s + passed_s,
            others_s=before.others_s + (passed_s if is_used and not is_leased else 0.0),
            idle_s=before.idle_s + (passed_s if is_idle else 0.0),
        )
    return replace(day, seen_at=format_time(now), devices=devices)


def next_day(day: IdleDay, name: str) -> IdleDay:
    """Return the day after, as it begins: what nobody holds is held by nobody since then."""
    since = {uuid: d for uuid, d in day.devices.items() if d.idle_since is not None}
    carried = {u: DeviceDay(model=d.model, idle_since=d.idle_since) for u, d in since.items()}
    return IdleDay(day=name, node=day.node, seen_at=day.seen_at, devices=carried)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nobody:
    """Device hours that nobody held, of those that were seen. cost: at the price of each model; None
    without a price of any. unpriced_hours: idle hours without a price."""

    idle_hours: float
    seen_hours: float
    devices: int
    cost: float | None
    unpriced_hours: float


def idle_total(days: Iterable[IdleDay], prices: Prices | None) -> Nobody | None:
    """Sum up the days; None where no device was ever seen."""
    idle_s = seen_s = unpriced_s = 0.0
    cost: float | None = None
    names: set[tuple[str, str]] = set()
    for day in days:
        for uuid, device in day.devices.items():
            names.add((day.node, uuid))
            idle_s, seen_s = idle_s + device.idle_s, seen_s + device.seen_s
            price = None if prices is None else prices.of(device.model, device.model, pool=None)
            if price is None:
                unpriced_s += device.idle_s
            else:
                cost = (cost or 0.0) + device.idle_s / 3600 * price
    if not names:
        return None
    return Nobody(
        idle_hours=idle_s / 3600,
        seen_hours=seen_s / 3600,
        devices=len(names),
        cost=cost,
        unpriced_hours=unpriced_s / 3600,
    )
