"""What a device hour costs, and what an attempt cost by it. Plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """currency: three letters, as of ISO 4217; per_device_hour: by accelerator or device class.

    spot_per_device_hour: the same of devices that may be taken away. source: the file that says so,
    empty where it is not known.
    """

    currency: str
    per_device_hour: Mapping[str, float] = field(default_factory=dict)
    spot_per_device_hour: Mapping[str, float] = field(default_factory=dict)
    source: str = ""

    def of(self, accelerator: str, device_class: str) -> float | None:
        """Return what an hour of this device costs: by its own name, else by its class."""
        return self.per_device_hour.get(accelerator, self.per_device_hour.get(device_class))

    def on_spot(self, accelerator: str, device_class: str) -> float | None:
        """Return what an hour of this device costs on spot, found as by `of`."""
        table = self.spot_per_device_hour
        return table.get(accelerator, table.get(device_class))


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
