"""What `goodput` tells: plain values, in device hours, seconds and money."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """What some attempts have in common, and what they cost. Device hours by bucket; seconds of all.

    wasted: of device hours, all that did not go into kept steps. cost: None without a price of any
    of the devices; unpriced_hours: device hours without a price.
    """

    name: str
    attempts: int
    kept_steps: int
    lost_steps: int
    seconds: Mapping[str, float]
    device_hours: Mapping[str, float]
    held_s: float
    total_hours: float
    wasted_hours: float
    cost: float | None
    wasted_cost: float | None
    unpriced_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """How often attempts were interrupted, and how fast that was found and repaired; means.

    None where there was nothing to take a mean of.
    """

    interruptions: int
    planned: int
    mtbi_s: float | None
    mttr_s: float | None
    detect_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrying:
    """Restarts, the hosts that they left out newly, and retries that came to nothing."""

    manual_restarts: int
    hosts_cycled: int
    automatic_restarts: int
    dead: int
    dead_hours: float
    same_failure: int
    same_failure_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Debits:
    """What retries took from the budget of one reason."""

    reason: str
    debits: int
    amount: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalLag:
    """From a checkpoint's commit to the end of its eval; None without any."""

    evals: int
    mean_s: float | None
    max_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """The account. since: None from the beginning on; groups: by `by`, the worst waste first.

    left_out: how many groups, of less waste, are not shown. ettr_wall, ettr, gpu_goodput: None without
    any seconds.
    """

    as_of: str
    since: str | None
    by: str
    family: str | None
    currency: str | None
    runs: int
    total: Group
    groups: tuple[Group, ...]
    left_out: int
    ettr_wall: float | None
    ettr: float | None
    gpu_goodput: float | None
    failing: Failing
    retrying: Retrying
    burn: tuple[Debits, ...]
    eval_lag: EvalLag
