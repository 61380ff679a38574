"""How often to save: worked examples, what few data give, and simulated interruptions.

The simulations draw from a seed that each failure names; TRACKS_CADENCE_SEED=… runs it again.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from tracks_dagster.checkpoints.cadence import (
    BLOCKING_S_MIN,
    CadenceAdvice,
    Exposure,
    PoolRecord,
    SaveCost,
    StepTime,
    advise,
    best_interval_s,
    expected_loss,
    interrupts,
    mean_time_between,
    pool_record,
    seconds_between_saves,
)
from tracks_dagster.track.bodies import CheckpointCadence
from tracks_dagster.track.reasons import TerminationReason

R = TerminationReason
SEED = int(os.environ.get("TRACKS_CADENCE_SEED", Random().randrange(2**32)))

# (δ, M) → (interval, share lost), both rounded
EXAMPLES = [
    ((2.0, 3600.0), (120.0, 0.0330)),  # √(2·2·3600) = √14400; 1 - 120/(3600·(e^(122/3600) - 1))
    ((0.5, 3600.0), (60.0, 0.0166)),  # √3600; 1 - 60/(3600·(e^(60.5/3600) - 1))
    ((8.0, 3600.0), (240.0, 0.0652)),  # four times δ is twice the interval
    ((2.0, 14400.0), (240.0, 0.0166)),  # four times M as well, and half of what is lost
    ((50.0, 100.0), (100.0, 0.7128)),  # √10000; 1 - 1/(e^1.5 - 1): no interval saves such a pool
]


@pytest.mark.parametrize(("given", "expected"), EXAMPLES)
def test_the_interval_is_the_root_of_twice_delta_times_m(
    given: tuple[float, float], expected: tuple[float, float]
) -> None:
    blocking_s, mean_time_s = given
    interval_s = best_interval_s(blocking_s, mean_time_s)
    loss = expected_loss(interval_s, blocking_s, mean_time_s)
    assert (round(interval_s, 6), round(loss, 4)) == expected


def test_for_rare_interruptions_the_loss_is_saves_plus_half_an_interval() -> None:
    # δ/τ + τ/(2M) = 2/120 + 120/7200 = 0.0333; the exact one leaves out what overlaps
    assert expected_loss(120, 2, 3600) == pytest.approx(2 / 120 + 120 / 7200, rel=0.02)


def test_an_interval_that_is_never_finished_loses_everything() -> None:
    assert expected_loss(1e9, 1, 60) == 1.0
    assert expected_loss(690 * 60.0, 1, 60) == 1.0


@pytest.mark.parametrize("exponent", range(-6, 2))
def test_the_interval_loses_at_most_a_fortieth_more_than_the_best_one(exponent: int) -> None:
    """The claim in the module's docstring, on a grid of intervals, for δ/M from 1e-6 to 10."""
    for mantissa in (1.0, 2.0, 5.0):
        ratio = mantissa * 10.0**exponent
        grid = (expected_loss(10.0 ** (place / 200), ratio, 1.0) for place in range(-1200, 301))
        assert expected_loss(best_interval_s(ratio, 1.0), ratio, 1.0) <= 1.0241 * min(grid)


# --- simulated interruptions ----------------------------------------------------------------------


def wasted(up_times: list[float], interval_s: float, blocking_s: float) -> float:
    """Return the share of `up_times` in which no work was kept: each one ends in an interruption.

    Work counts once the save after it is done: an up time of 250 s keeps two intervals of 100 s with
    saves of 10 s (250 // 110 = 2), so it wastes 50 of 250 s.
    """
    kept = sum(interval_s * (up // (interval_s + blocking_s)) for up in up_times)
    return 1.0 - kept / sum(up_times)


def memoryless(random: Random, mean_s: float) -> float:
    """An up time that does not know how long it has lasted."""
    return random.expovariate(1 / mean_s)


def spot(random: Random, mean_s: float) -> float:
    """An up time as spot machines have it: many of some minutes, few of hours, seen every 34 s.

    Log-normal with σ = 1.2: the median is half the mean (e^(-0.72)), a tenth are below a tenth of it.
    The machine went away at some moment between two looks.
    """
    drawn = random.lognormvariate(math.log(mean_s) - 0.72, 1.2)
    return (drawn // 34 + random.random()) * 34


@pytest.mark.parametrize("draw", [memoryless, spot])
@pytest.mark.parametrize(
    ("blocking_s", "mean_s"), [(0.05, 1800.0), (1.0, 1080.0), (2.0, 3600.0), (20.0, 7200.0)]
)
def test_the_advised_interval_wastes_within_5_percent_of_the_best_on_a_grid(
    draw: Callable[[Random, float], float], blocking_s: float, mean_s: float
) -> None:
    print(f"TRACKS_CADENCE_SEED={SEED}")
    random = Random(f"{SEED} {draw.__name__} {blocking_s} {mean_s}")
    up_times = [draw(random, mean_s) for _ in range(20_000)]
    exposures = [Exposure(run_id="r", exposed_s=up, reason=R.PREEMPTED) for up in up_times]
    pool = pool_record("k8s", "v100", exposures)
    advice = advise(
        "r",
        saves=SaveCost(blocking_s=blocking_s, save_count=9),
        steps=None,
        pool=pool,
        now=CheckpointCadence(),
    )
    assert advice.interval_s is not None
    scales = [10.0 ** (place / 20) for place in range(-20, 21)]  # a tenth of it to ten times it
    best = min(wasted(up_times, advice.interval_s * scale, blocking_s) for scale in scales)
    assert wasted(up_times, advice.interval_s, blocking_s) <= 1.05 * best, f"seed {SEED}"


# --- what was measured ----------------------------------------------------------------------------


def exposures(*seconds_and_reasons: tuple[float, R | None]) -> list[Exposure]:
    return [
        Exposure(run_id=f"r-{index // 2}", exposed_s=seconds, reason=reason)
        for index, (seconds, reason) in enumerate(seconds_and_reasons)
    ]


def advised(pool: PoolRecord | None = None, **changes: Any) -> CadenceAdvice:
    """Advice for saves of 2 s, steps of 0.5 s and a pool that interrupts once an hour."""
    given: dict[str, Any] = {
        "saves": SaveCost(blocking_s=2.0, save_count=12),
        "steps": StepTime(step_s=0.5, step_count=100, attempt_id=1),
        "pool": pool or pool_record("local", "cpu", exposures(*[(3600.0, R.PREEMPTED)] * 12)),
        "now": CheckpointCadence(every_steps=100),
    }
    return advise("r-0", **given | changes)


def test_the_proposal_is_in_seconds_and_in_steps_with_what_it_loses() -> None:
    advice = advised()
    assert (advice.interval_s, advice.interval_steps) == (120.0, 240)  # 120 s / 0.5 s
    assert advice.expected_loss == pytest.approx(0.0330, abs=1e-4)
    assert advice.now_s == 50.0  # 100 steps of 0.5 s: 2/52 + about 50/7200
    assert advice.now_loss == pytest.approx(0.0454, abs=2e-4)
    assert (advice.missing, advice.caveats) == ((), ())


def test_only_what_the_pool_did_counts_as_an_interruption() -> None:
    pool = pool_record(
        "local",
        "cpu",
        exposures(
            (100.0, R.PREEMPTED),
            (200.0, R.NODE_FAILURE),
            (300.0, R.CODE_ERROR),
            (400.0, R.USER_CANCELLED),
            (500.0, R.COMPLETED),
            (600.0, None),
        ),
    )
    assert pool.interruptions == {"node_failure": 1, "preempted": 1}
    assert pool.other_ends == {"code_error": 1, "completed": 1, "user_cancelled": 1}
    assert (pool.attempt_count, pool.run_count, pool.run_ids) == (6, 3, ("r-0", "r-1", "r-2"))
    mean_time = mean_time_between(pool)
    assert mean_time is not None
    assert (mean_time.seconds, mean_time.is_lower_bound) == (1050.0, False)  # 2100 s / 2


@pytest.mark.parametrize("reason", R)
def test_an_attempt_that_ended_as_meant_or_by_its_own_fault_was_not_interrupted(reason: R) -> None:
    expected = {
        R.PREEMPTED,
        R.NODE_DRAINED,
        R.SCHEDULING_TIMEOUT,
        R.WALLTIME_TIMEOUT,
        R.NODE_FAILURE,
        R.GPU_HARDWARE,
        R.NETWORK_FABRIC,
        R.STORAGE_IO,
        R.SILENT_CORRUPTION,
    }
    assert interrupts(reason) == (reason in expected)


def test_without_an_interruption_a_third_of_the_exposure_bounds_m_from_below() -> None:
    advice = advised(pool_record("local", "cpu", exposures((10_800.0, R.COMPLETED))))
    assert advice.mean_time is not None
    assert (advice.mean_time.seconds, advice.mean_time.is_lower_bound) == (3600.0, True)
    assert "rule of three" in advice.mean_time.how
    assert advice.interval_s == 120.0
    assert "No interruption was seen yet" in advice.caveats[0]


def test_few_interruptions_come_with_how_far_m_may_be_off() -> None:
    advice = advised(pool_record("local", "cpu", exposures(*[(3600.0, R.PREEMPTED)] * 4)))
    assert advice.caveats == (
        "M rests on few interruptions (4): it may be off by 50 %, the interval by half of that.",
    )


def test_a_pool_that_nothing_ran_on_gives_no_interval() -> None:
    for unexposed in ([], exposures((0.0, R.PREEMPTED)), exposures((0.0, None))):
        advice = advised(pool_record("local", "cpu", unexposed))
        assert (advice.mean_time, advice.interval_s, advice.expected_loss) == (None, None, None)
        assert "No attempt of the pool" in advice.missing[0]


def test_a_run_without_a_periodic_save_gets_no_interval() -> None:
    advice = advised(saves=None)
    assert (advice.interval_s, advice.interval_steps, advice.now_loss) == (None, None, None)
    assert "no periodic save" in advice.missing[0]


def test_without_a_timed_step_the_interval_is_in_seconds_only() -> None:
    advice = advised(steps=None)
    assert (advice.interval_s, advice.interval_steps, advice.now_s) == (120.0, None, None)
    assert "in seconds only" in advice.missing[0]


def test_saves_that_cost_nothing_do_not_divide_by_zero() -> None:
    advice = advised(saves=SaveCost(blocking_s=0.0, save_count=3), steps=None)
    assert advice.interval_s == best_interval_s(BLOCKING_S_MIN, 3600.0)
    assert "0.0001 s was used" in advice.caveats[0]


def test_nothing_is_proposed_below_one_step() -> None:
    advice = advised(steps=StepTime(step_s=300.0, step_count=4, attempt_id=1))
    assert (advice.interval_s, advice.interval_steps) == (300.0, 1)
    assert advice.expected_loss == expected_loss(300.0, 2.0, 3600.0)
    assert advice.caveats == (
        "The best interval, 120 s, is shorter than a step: save after every step.",
    )


@pytest.mark.parametrize(
    ("cadence", "expected"),
    [
        (CheckpointCadence(every_steps=100, every_s=None), 50.0),
        (CheckpointCadence(every_steps=100, every_s=20.0), 20.0),  # whichever comes first
        (CheckpointCadence(every_steps=100, every_s=80.0), 50.0),
        (CheckpointCadence(every_steps=None, every_s=80.0), 80.0),
        (CheckpointCadence(), None),
    ],
)
def test_the_present_cadence_is_what_comes_first(
    cadence: CheckpointCadence, expected: float | None
) -> None:
    steps = StepTime(step_s=0.5, step_count=1, attempt_id=1)
    assert seconds_between_saves(cadence, steps) == expected
