"""A person's price table. Without one there is no money, only device hours.

currency: USD
per_device_hour:              # an accelerator as the ledger names it, else a device class
  NVIDIA H100 80GB HBM3: 2.49
  cpu: 0.04
pools:                        # those with prices of their own, as of spot; may be left out
  spot: {NVIDIA H100 80GB HBM3: 0.95}
spot_per_device_hour: {cpu: 0.01}   # for `tracks profile` alone, without such a pool; may be left out
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Field, PlainValidator

from tracks_dagster.ledger.prices import Prices
from tracks_dagster.track.effects.settings_file import FileModel, SettingsFile
from tracks_dagster.track.text import units

DEVICES_MAX = 100  # in one table; an organisation has a few
POOLS_MAX = 100
_CURRENCY = re.compile(r"[A-Z]{3}")


def read_prices(file: SettingsFile) -> Prices:
    """Return what the file contains; raises SettingsError with all that is wrong."""
    found = file.read(_PriceTable)
    if found is None or file.problems:
        raise file.error()
    return Prices(
        currency=found.currency,
        per_device_hour=found.per_device_hour,
        pools=found.pools,
        spot_per_device_hour=found.spot_per_device_hour,
        source=file.path,
    )


def _currency(value: object) -> str:
    if isinstance(value, str) and _CURRENCY.fullmatch(value):
        return value
    raise ValueError(
        f"{units.shown(value)} is not a currency; write three letters, for example USD."
    )


def _few(prices: Mapping[str, float]) -> Mapping[str, float]:
    if len(prices) > DEVICES_MAX:
        raise ValueError(f"{len(prices)} devices are more than {DEVICES_MAX}.")
    return prices


def _few_pools(pools: Mapping[str, Mapping[str, float]]) -> Mapping[str, Mapping[str, float]]:
    if len(pools) > POOLS_MAX:
        raise ValueError(f"{len(pools)} pools are more than {POOLS_MAX}.")
    return pools


_PerHour = Annotated[
    Mapping[str, Annotated[float, PlainValidator(units.number)]], AfterValidator(_few)
]


class _PriceTable(FileModel):
    currency: Annotated[str, PlainValidator(_currency)] = Field(
        description="write three letters, for example USD"
    )
    per_device_hour: _PerHour = Field(
        description="write what each device costs, for example {cpu: 0.04}"
    )
    pools: Annotated[Mapping[str, _PerHour], AfterValidator(_few_pools)] = Field(
        default_factory=dict,
        description="write what each device costs in a pool, for example {spot: {cpu: 0.01}}",
    )
    spot_per_device_hour: _PerHour = Field(
        default_factory=dict, description="write what each device costs where it may be taken away"
    )
