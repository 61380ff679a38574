"""What a run's steps take, what all of it will by that, and what more devices would bring. Pure.

Everything is measured: from the journal of the newest attempt with steps, its records, and how often
the pool interrupted. A stall is a step of more than three times the median.

Scaling: with the throughput of the smallest gang as 1 for each of its devices, a gang of n has the
speed-up s. From 1 to 2 devices with s = 1.8 the added one brings 0.8 of a device; from 2 to 4 with
s = 2.4 each of the two brings (2.4 - 1.8) / 2 = 0.3. Below a half, the added devices do less than they
would in a run of their own, and an epoch costs 4 / 2.4 = 1.67 times as much as on one: stop at 2.

Spot: of a run that saves every τ seconds, for δ seconds each, and is interrupted every M seconds, then
needs R seconds to come back, each second of steps costs 1 + w seconds of devices, with

    w = δ/τ + (τ/2 + R)/M

so spot is cheaper while its price is below (1 + w on demand) / (1 + w on spot) of the other. With
δ = 5 s, R = 60 s, the best τ = √(2δM) and no interruptions on demand: M = 30 min gives 0.90, 1 h 0.94,
6 h 0.98. At the discounts that are usual spot always wins on money; what it costs is the delay.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tracks_dagster.attempts.pace import Pace, Span, time_for
from tracks_dagster.checkpoints.cadence import best_interval_s
from tracks_dagster.track.bodies import MemoryPeak, TimeSpent

STALL_FACTOR = 3.0
ASSUMED_S = (1800.0, 3600.0, 6 * 3600.0)  # between interruptions, where a pool had none yet
WORTH_MIN = 0.5  # of a device, that an added one has to bring
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """One step as it was measured. wall_s: from the end of the step before to its own end.

    exchange_s: of it, until all ranks had agreed at its report; None where that was not measured.
    """

    wall_s: float
    exchange_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Where the time between the first and the last measured step went, 0 to 1.

    computing: the steps themselves, exchange included. None: not measured.
    """

    computing: float
    data: float
    saving: float
    evaluating: float
    other: float
    exchange: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a run takes. attempt_id: whose steps were measured; steps: how many.

    start_s: from the claim of its supervisor to its restore, the median of `starts` attempts.
    samples_per_s: over all ranks; None where the config has no global batch.
    stalls, stalled_s: steps above STALL_FACTOR medians, and what they took beyond one.
    """

    run_id: str
    attempt_id: int
    ranks: int
    device: str
    steps: int
    p50_s: float
    p90_s: float
    p99_s: float
    pace: Pace
    shares: Shares | None
    samples_per_s: float | None
    stalls: int
    stalled_s: float
    start_s: float | None
    starts: int
    memory: MemoryPeak | None

    @property
    def steps_per_s(self) -> float:
        """Steps in a second, saves and waits included."""
        return 1.0 / self.pace.step_s


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that `share` of all do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def stalls_of(steps: Sequence[StepTimes]) -> tuple[int, float]:
    """Return how many steps stalled, and the seconds that they took beyond the median."""
    median = quantile([step.wall_s for step in steps], 0.5)
    long = [step.wall_s for step in steps if step.wall_s > STALL_FACTOR * median]
    return len(long), sum(wall - median for wall in long)


def shares_of(
    first: TimeSpent | None, last: TimeSpent | None, steps: Sequence[StepTimes]
) -> Shares | None:
    """Return where the time went between two sums of a launch; None of an older journal.

    first: before the first of `steps`; last: after the last.
    """
    wall_s = sum(step.wall_s for step in steps)
    if first is None or last is None or wall_s <= 0:
        return None
    parts = {
        "computing": last.steps_s - first.steps_s,
        "data": last.data_s - first.data_s,
        "saving": last.saving_s - first.saving_s,
        "evaluating": last.eval_s - first.eval_s,
    }
    known = {name: min(1.0, max(0.0, seconds / wall_s)) for name, seconds in parts.items()}
    waits = [step.exchange_s for step in steps if step.exchange_s is not None]
    return Shares(
        **known,
        other=max(0.0, 1.0 - sum(known.values())),
        exchange=sum(waits) / wall_s if len(waits) == len(steps) else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Money:
    """What a device hour costs, in its pool and on demand. spot: of the same device on spot, None
    where the table has none."""

    currency: str
    per_device_hour: float
    on_demand_per_device_hour: float
    spot_per_device_hour: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What so many steps take from a start on. wall: seconds; devices: at once.

    wall holds steps, saves and waits as they were measured, and one start; low and high are of 95 %,
    if the run continues as it did. No interruption is in it.
    """

    steps: int
    devices: int
    wall: Span
    money: Money | None

    @property
    def device_hours(self) -> Span:
        """Devices times hours."""
        return _scaled(self.wall, self.devices / HOUR_S)

    @property
    def cost(self) -> Span | None:
        """In the price table's currency; None without a price."""
        per_hour = None if self.money is None else self.money.per_device_hour
        return None if per_hour is None else _scaled(self.device_hours, per_hour)


def estimate(profile: Profile, steps: int, money: Money | None) -> Estimate:
    """Return what a run of `steps` steps from a start on takes."""
    start_s = profile.start_s or 0.0
    left = time_for(profile.pace, steps)
    wall = Span(
        seconds=start_s + left.seconds,
        low_s=None if left.low_s is None else start_s + left.low_s,
        high_s=None if left.high_s is None else start_s + left.high_s,
    )
    return Estimate(steps=steps, devices=profile.ranks, wall=wall, money=money)


def _scaled(span: Span, factor: float) -> Span:
    return Span(
        seconds=span.seconds * factor,
        low_s=None if span.low_s is None else span.low_s * factor,
        high_s=None if span.high_s is None else span.high_s * factor,
    )


# --- spot or on demand -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruptions:
    """How a run meets them. blocking_s: δ of a save; restart_s: R; mean_time_s: M.

    interval_s: τ between saves; None: the best.
    """

    blocking_s: float
    restart_s: float
    mean_time_s: float
    interval_s: float | None = None

    @property
    def waste(self) -> float:
        """Seconds of devices lost for each second of steps."""
        interval_s = self.interval_s or best_interval_s(self.blocking_s, self.mean_time_s)
        return self.blocking_s / interval_s + (interval_s / 2 + self.restart_s) / self.mean_time_s

    @property
    def break_even(self) -> float:
        """The part of the on-demand price below which spot is cheaper; on demand nothing ends."""
        kept = self.blocking_s / self.interval_s if self.interval_s else 0.0
        return (1.0 + kept) / (1.0 + self.waste)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotChoice:
    """The same run on spot. delay_s: what it ends later; cost: on spot; saved: against on demand."""

    break_even: float
    delay_s: float
    cost: float | None
    saved: float | None


def on_spot(whole: Estimate, met: Interruptions) -> SpotChoice:
    """Return what the estimate becomes with these interruptions, at the spot price if there is one."""
    kept = met.blocking_s / met.interval_s if met.interval_s else 0.0
    delay_s = whole.wall.seconds * (met.waste - kept)
    money = whole.money
    cost = saved = None
    if money is not None and money.spot_per_device_hour is not None:
        hours = (whole.wall.seconds + delay_s) / HOUR_S * whole.devices
        cost = hours * money.spot_per_device_hour
        saved = whole.device_hours.seconds * money.on_demand_per_device_hour - cost
    return SpotChoice(break_even=met.break_even, delay_s=delay_s, cost=cost, saved=saved)


# --- more devices ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The throughput of one gang: samples, or steps where the config has no batch, in a second."""

    run_id: str
    devices: int
    per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleStep:
    """One size beside the smallest. marginal: what each device that was added to the size before
    brings, in devices; None of the smallest. cost: of an epoch, in epochs on the smallest.
    """

    run_id: str
    devices: int
    per_s: float
    speedup: float
    marginal: float | None
    cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingAdvice:
    """stop_at: the largest size up to which every added device brought WORTH_MIN of one."""

    steps: tuple[ScaleStep, ...]
    stop_at: int

    @property
    def words(self) -> str:
        """The advice as a sentence."""
        beyond = next((step for step in self.steps if step.devices > self.stop_at), None)
        if beyond is None or beyond.marginal is None:
            return f"Up to {self.stop_at} devices each added one brought at least {WORTH_MIN:g} of one."
        return (
            f"Stop at {self.stop_at}: from there to {beyond.devices} devices each added one brought "
            f"{beyond.marginal:.2f} of one, and an epoch costs {beyond.cost:.2f} times as much as on "
            f"{self.steps[0].devices}."
        )


def advise_scaling(sizes: Sequence[Measured]) -> ScalingAdvice:
    """Return what each size brought; sizes: one or more, of which the last of a size counts."""
    by_devices = {size.devices: size for size in sizes}
    ordered = [by_devices[devices] for devices in sorted(by_devices)]
    smallest = ordered[0]
    steps: list[ScaleStep] = []
    for size in ordered:
        speedup = size.per_s / smallest.per_s
        scaled = speedup * smallest.devices  # in devices that work as well as the smallest gang's
        before = steps[-1] if steps else None
        marginal = None
        if before is not None:
            gained = scaled - before.speedup * smallest.devices
            marginal = gained / (size.devices - before.devices)
        steps.append(
            ScaleStep(
                run_id=size.run_id,
                devices=size.devices,
                per_s=size.per_s,
                speedup=speedup,
                marginal=marginal,
                cost=size.devices / scaled,
            )
        )
    stop_at = smallest.devices
    for step in steps[1:]:
        if step.marginal is None or step.marginal < WORTH_MIN:
            break
        stop_at = step.devices
    return ScalingAdvice(steps=tuple(steps), stop_at=stop_at)
