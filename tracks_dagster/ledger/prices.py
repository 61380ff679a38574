"""What a device hour costs, and what an attempt cost by it. Plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """currency: three letters, as of ISO 4217; per_device_hour: by accelerator or device class.

    pools: the same for the pools that have prices of their own, as of spot, by name.
    spot_per_device_hour: of devices that may be taken away, whatever their pool, for an estimate
    alone. source: the file that says so, empty where it is not known.
    """

    currency: str
    per_device_hour: Mapping[str, float] = field(default_factory=dict)
    pools: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    spot_per_device_hour: Mapping[str, float] = field(default_factory=dict)
    source: str = ""

    def of(self, accelerator: str, device_class: str, *, pool: str | None) -> float | None:
        """Return what an hour of this device costs: in its pool, else anywhere.

        In each of the two by its own name, else by its class. pool: None for one that is in none.
        """
        tables = (self.pools.get(pool or "", {}), self.per_device_hour)
        found = (table.get(name) for table in tables for name in (accelerator, device_class))
        return next((price for price in found if price is not None), None)

    def on_spot(self, accelerator: str, device_class: str) -> float | None:
        """Return the least that an hour of this device costs on spot, or in a pool of its own price."""
        tables = (self.spot_per_device_hour, *self.pools.values())
        found = (table.get(accelerator, table.get(device_class)) for table in tables)
        return min((price for price in found if price is not None), default=None)

    def rows(self) -> list[tuple[str, str, float]]:
        """Return every price as (pool, device, price); the pool is "" for those of anywhere."""
        tables = {"": self.per_device_hour, **self.pools}
        return [
            (pool, name, price) for pool, each in tables.items() for name, price in each.items()
        ]


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
