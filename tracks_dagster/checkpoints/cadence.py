"""How often a run should save: the interval that loses the least, from what was measured.

A save every τ seconds costs two things: the δ seconds that it blocks training, and the work since the
last save that an interruption throws away. With M the mean time between interruptions, Young (1974)
gives τ = √(2·δ·M). For δ = 2 s and M = 1 h: √(2 · 2 · 3600) = 120 s, which loses 3.3 % of the time.

Daly's (2006) higher-order term is left out: for interruptions without memory Young's interval loses
at most 1.024 times what the best one loses, whatever δ and M are, and M itself is never known that
well. What a restart costs is the same for every interval and not counted. An interruption that leaves
time for a save on SIGTERM throws nothing away and counts anyway: the advice errs towards saving
too often, which costs the least.

Everything here is pure; `checkpoints.effects.cadence` measures.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tracks_dagster.track.bodies import CheckpointCadence
from tracks_dagster.track.reasons import ReasonFamily, TerminationReason

INTERRUPTING_FAMILIES = frozenset({ReasonFamily.CAPACITY, ReasonFamily.HARDWARE})
# Blocking is recorded to a tenth of a millisecond: what is recorded as 0 counts as this.
BLOCKING_S_MIN = 0.0001
# Hanley and Lippman-Hand (1983): what did not happen in T seconds happens, with 95 % confidence, less
# than once in T / 3 seconds, because e^-3 is 5 %.
RULE_OF_THREE = 3.0
FEW_INTERRUPTIONS = 10  # fewer leave M uncertain by more than a third
RUNS_NAMED_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCost:
    """How long a save of this run blocks training: the median over `save_count` periodic saves."""

    blocking_s: float
    save_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """How long a step of this run takes, waiting for data included: a median."""

    step_s: float
    step_count: int
    attempt_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """How long one placed attempt was exposed to interruptions. reason: None while it is open.

    is_planned: a person asked it to leave its node; it had saved, and that is not an interruption.
    """

    run_id: str
    exposed_s: float
    reason: TerminationReason | None
    is_planned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRecord:
    """What all placed attempts of one pool went through; a gang is one, whatever its size.

    interruptions, other_ends: attempts by reason; only the first count. run_ids: the newest runs.
    """

    launcher: str
    device_class: str
    exposure_s: float
    interruptions: Mapping[str, int]
    other_ends: Mapping[str, int]
    attempt_count: int
    run_count: int
    run_ids: tuple[str, ...]

    @property
    def interruption_count(self) -> int:
        """How many attempts the pool interrupted."""
        return sum(self.interruptions.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanTime:
    """The mean time between interruptions; `is_lower_bound` when none has been seen yet."""

    seconds: float
    is_lower_bound: bool
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CadenceAdvice:
    """The proposed interval and every number that it rests on.

    interval_s, interval_steps, expected_loss: None where `missing` says what is not known; the loss
    is a share of the time, 0 to 1. now_s, now_loss: the same for the run's present cadence.
    """

    run_id: str
    saves: SaveCost | None
    steps: StepTime | None
    pool: PoolRecord
    mean_time: MeanTime | None
    interval_s: float | None
    interval_steps: int | None
    expected_loss: float | None
    now: CheckpointCadence
    now_s: float | None
    now_loss: float | None
    missing: tuple[str, ...]
    caveats: tuple[str, ...]


def advise(
    run_id: str,
    *,
    saves: SaveCost | None,
    steps: StepTime | None,
    pool: PoolRecord,
    now: CheckpointCadence,
) -> CadenceAdvice:
    """Return the proposal for a run, as far as the measurements carry it."""
    mean_time = mean_time_between(pool)
    now_s = seconds_between_saves(now, steps)
    interval_s = steps_between = loss = now_loss = None
    if saves is not None and mean_time is not None:
        blocking_s = max(saves.blocking_s, BLOCKING_S_MIN)
        interval_s = best_interval_s(blocking_s, mean_time.seconds)
        if steps is not None:
            steps_between = max(1, round(interval_s / steps.step_s))
            interval_s = max(interval_s, steps.step_s)
        loss = expected_loss(interval_s, blocking_s, mean_time.seconds)
        if now_s is not None:
            now_loss = expected_loss(now_s, blocking_s, mean_time.seconds)
    return CadenceAdvice(
        run_id=run_id,
        saves=saves,
        steps=steps,
        pool=pool,
        mean_time=mean_time,
        interval_s=interval_s,
        interval_steps=steps_between,
        expected_loss=loss,
        now=now,
        now_s=now_s,
        now_loss=now_loss,
        missing=tuple(_missing(saves, steps, mean_time)),
        caveats=tuple(_caveats(saves, steps, pool, mean_time)),
    )


def best_interval_s(blocking_s: float, mean_time_s: float) -> float:
    """Return Young's interval between saves, √(2·δ·M); both arguments are greater than 0."""
    return math.sqrt(2.0 * blocking_s * mean_time_s)


def expected_loss(interval_s: float, blocking_s: float, mean_time_s: float) -> float:
    """Return the share of the time that is lost to saves and to work done again, 0 to 1.

    Interruptions without memory: to get through `interval_s` of work and its save takes
    M·(e^((τ + δ) / M) − 1) on average (Daly 2006, restarts apart). For τ = 120 s, δ = 2 s and
    M = 3600 s that is 124.1 s, of which 4.1 s or 3.3 % are lost; about δ / τ + τ / (2·M).
    """
    exponent = (interval_s + blocking_s) / mean_time_s
    if exponent > math.log(1e300):  # no interval is ever finished
        return 1.0
    return 1.0 - interval_s / (mean_time_s * math.expm1(exponent))


def mean_time_between(pool: PoolRecord) -> MeanTime | None:
    """Return M of a pool: exposure over interruptions; None when nothing was ever exposed."""
    if pool.exposure_s <= 0.0:
        return None
    if pool.interruption_count == 0:
        return MeanTime(
            seconds=pool.exposure_s / RULE_OF_THREE,
            is_lower_bound=True,
            how="no interruption seen: at least a third of the exposure, with 95 % confidence "
            "(rule of three)",
        )
    return MeanTime(
        seconds=pool.exposure_s / pool.interruption_count,
        is_lower_bound=False,
        how="exposure divided by interruptions",
    )


def pool_record(launcher: str, device_class: str, exposures: Iterable[Exposure]) -> PoolRecord:
    """Return what `exposures`, the newest first, add up to."""
    known = list(exposures)
    reasons = Counter(
        exposure.reason for exposure in known if exposure.reason and not exposure.is_planned
    )
    planned = Counter(
        exposure.reason for exposure in known if exposure.reason and exposure.is_planned
    )
    run_ids = tuple(dict.fromkeys(exposure.run_id for exposure in known))
    return PoolRecord(
        launcher=launcher,
        device_class=device_class,
        exposure_s=sum((exposure.exposed_s for exposure in known), start=0.0),
        interruptions={r.value: n for r, n in sorted(reasons.items()) if interrupts(r)},
        other_ends={
            **{r.value: n for r, n in sorted(reasons.items()) if not interrupts(r)},
            **{f"{r.value} (planned)": n for r, n in sorted(planned.items())},
        },
        attempt_count=len(known),
        run_count=len(run_ids),
        run_ids=run_ids[:RUNS_NAMED_MAX],
    )


def interrupts(reason: TerminationReason) -> bool:
    """Whether the pool ended the attempt: capacity taken, or hardware, fabric or storage failed."""
    return reason.family in INTERRUPTING_FAMILIES


def seconds_between_saves(cadence: CheckpointCadence, steps: StepTime | None) -> float | None:
    """Return how far apart a cadence's saves are; None when it has none, or no step was timed."""
    known = [] if cadence.every_s is None else [cadence.every_s]
    if cadence.every_steps is not None:
        if steps is None:
            return None
        known.append(cadence.every_steps * steps.step_s)
    return min(known, default=None)


def _missing(
    saves: SaveCost | None, steps: StepTime | None, mean_time: MeanTime | None
) -> Iterable[str]:
    if saves is None:
        yield "The run has committed no periodic save yet, so what one costs is not known."
    if mean_time is None:
        yield "No attempt of the pool was placed yet, so how often it interrupts is not known."
    if steps is None:
        yield "No step of the run is in its journals, so the interval is in seconds only."


def _caveats(
    saves: SaveCost | None, steps: StepTime | None, pool: PoolRecord, mean_time: MeanTime | None
) -> Iterable[str]:
    count = pool.interruption_count
    if mean_time is not None and mean_time.is_lower_bound:
        yield (
            "No interruption was seen yet: the interval is the shortest that may be needed, the loss "
            "the greatest to expect."
        )
    elif 0 < count < FEW_INTERRUPTIONS:
        # Counts of rare events spread by √n; the interval goes with the root of M, so by half.
        yield (
            f"M rests on few interruptions ({count}): it may be off by "
            f"{100 / math.sqrt(count):.0f} %, the interval by half of that."
        )
    if saves is not None and saves.blocking_s < BLOCKING_S_MIN:
        yield f"The saves were recorded as blocking 0 s; {BLOCKING_S_MIN} s was used."
    if saves is not None and steps is not None and mean_time is not None:
        best = best_interval_s(max(saves.blocking_s, BLOCKING_S_MIN), mean_time.seconds)
        if best < steps.step_s:
            yield f"The best interval, {best:.3g} s, is shorter than a step: save after every step."
