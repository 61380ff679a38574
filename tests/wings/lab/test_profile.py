"""What steps say of a whole run, of spot, and of more devices: the document's figures by hand."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from tracks_dagster.attempts.pace import measure
from tracks_dagster.track.bodies import TimeSpent
from tracks_dagster.wings.lab.edge.profile import _whole
from tracks_dagster.wings.lab.profile import (
    Interruptions,
    Measured,
    Money,
    Profile,
    StepTimes,
    advise_scaling,
    estimate,
    on_spot,
    quantile,
    shares_of,
    stalls_of,
)

ERROR_MAX = 0.10


def profile(ends_s: list[float], *, ranks: int = 1, start_s: float = 60.0) -> Profile:
    """Return the profile of steps that ended at these times."""
    pace = measure(1, ends_s)
    assert pace is not None
    walls = [later - earlier for earlier, later in itertools.pairwise(ends_s)]
    return Profile(
        run_id="r",
        attempt_id=1,
        ranks=ranks,
        device="cpu",
        steps=len(walls),
        p50_s=quantile(walls, 0.5),
        p90_s=quantile(walls, 0.9),
        p99_s=quantile(walls, 0.99),
        pace=pace,
        shares=None,
        samples_per_s=None,
        stalls=0,
        stalled_s=0.0,
        start_s=start_s,
        starts=1,
        memory=None,
    )


def recorded(rng: random.Random, steps: int) -> list[float]:
    """Return when the steps of a run ended: neighbours are alike, and every tenth saves."""
    at, drift, ends = 60.0, 0.0, []
    for step in range(1, steps + 1):
        drift = 0.9 * drift + rng.gauss(0.0, 0.02)
        at += 0.5 * math.exp(drift + rng.gauss(0.0, 0.05)) + (0.4 if step % 10 == 0 else 0.0)
        ends.append(at)
    return ends


@pytest.mark.parametrize("seed", range(20))
def test_a_whole_run_is_estimated_from_its_first_hundred_steps(seed: int) -> None:
    ends = recorded(random.Random(seed), 2000)
    found = estimate(profile(ends[1:101]), 2000, None)
    assert found.wall.seconds == pytest.approx(ends[-1], rel=ERROR_MAX)
    assert found.wall.low_s is not None
    assert found.wall.high_s is not None
    assert found.wall.low_s < found.wall.seconds < found.wall.high_s


def test_an_estimate_is_in_hours_of_devices_and_in_money() -> None:
    # 60 s of start and 360 steps of 10 s are an hour and a minute, on four devices 4.0667 hours.
    found = estimate(
        profile([10.0 * n for n in range(9)], ranks=4),
        360,
        Money(currency="USD", per_device_hour=3.0, on_demand_per_device_hour=3.0),
    )
    assert found.wall.seconds == pytest.approx(3660.0)
    assert found.device_hours.seconds == pytest.approx(4.06667, abs=1e-4)
    assert found.cost is not None
    assert found.cost.seconds == pytest.approx(12.2)
    assert found.cost.low_s == pytest.approx(12.2)  # steps that never differ leave nothing open


def test_steps_are_read_by_their_rank_and_stalls_by_the_median() -> None:
    walls = [1.0] * 90 + [2.0] * 9 + [8.0]
    assert [quantile(walls, share) for share in (0.5, 0.9, 0.99)] == [1.0, 1.0, 2.0]
    assert quantile([7.0], 0.99) == 7.0
    assert stalls_of([StepTimes(wall_s=wall) for wall in walls]) == (1, 7.0)  # 2.0 is not a stall


def test_time_between_two_sums_is_shared_out() -> None:
    steps = [StepTimes(wall_s=5.0, exchange_s=0.5), StepTimes(wall_s=5.0, exchange_s=0.5)]
    first = TimeSpent(steps_s=2.0, data_s=1.0)
    last = TimeSpent(steps_s=9.0, data_s=2.5, saving_s=0.5, eval_s=0.5)
    shares = shares_of(first, last, steps)
    assert shares is not None
    assert (shares.computing, shares.data, shares.saving) == (0.7, 0.15, 0.05)
    assert (shares.evaluating, shares.exchange) == (0.05, 0.1)
    assert shares.other == pytest.approx(0.05)
    assert shares_of(None, last, steps) is None  # of an older journal


@pytest.mark.parametrize(
    ("mean_time_s", "break_even"), [(1800.0, 0.90), (3600.0, 0.94), (6 * 3600.0, 0.98)]
)
def test_spot_breaks_even_a_little_below_the_price_on_demand(
    mean_time_s: float, break_even: float
) -> None:
    met = Interruptions(blocking_s=5.0, restart_s=60.0, mean_time_s=mean_time_s)
    assert met.break_even == pytest.approx(break_even, abs=0.005)


def test_spot_costs_less_and_takes_longer() -> None:
    # Of an hour each second costs 1 + 5/200 + (100 + 60)/3600 = 1.0694, 5/200 of it on demand too.
    met = Interruptions(blocking_s=5.0, restart_s=60.0, mean_time_s=3600.0, interval_s=200.0)
    assert met.waste == pytest.approx(0.06944, abs=1e-5)
    money = Money(
        currency="USD", per_device_hour=3.0, on_demand_per_device_hour=3.0, spot_per_device_hour=1.0
    )
    choice = on_spot(estimate(profile([10.0 * n for n in range(9)]), 354, money), met)
    assert choice.delay_s == pytest.approx(160.0)  # 3600 × 160/3600
    assert choice.cost == pytest.approx(3760 / 3600)
    assert choice.saved == pytest.approx(3.0 - 3760 / 3600)


def test_of_a_pool_without_interruptions_the_break_even_is_shown_for_three() -> None:
    met = Interruptions(blocking_s=5.0, restart_s=60.0, mean_time_s=1.0)
    whole = estimate(profile([10.0 * n for n in range(9)]), 354, None)
    result = list(_whole(whole, met, ""))
    assert result[-1].endswith("0.90 every 30 min, 0.94 every 60 min, 0.98 every 6.0 h.")


def sizes(*per_s: tuple[int, float]) -> list[Measured]:
    return [Measured(run_id=f"r-{devices}", devices=devices, per_s=rate) for devices, rate in per_s]


def test_a_speed_up_of_1_8_on_two_and_2_4_on_four_says_stop_at_two() -> None:
    advice = advise_scaling(sizes((1, 100.0), (2, 180.0), (4, 240.0)))
    assert advice.stop_at == 2
    assert [step.speedup for step in advice.steps] == pytest.approx([1.0, 1.8, 2.4])
    assert [step.marginal for step in advice.steps][1:] == pytest.approx([0.8, 0.3])
    assert [step.cost for step in advice.steps] == pytest.approx([1.0, 1.11, 1.67], abs=0.005)
    assert advice.words == (
        "Stop at 2: from there to 4 devices each added one brought 0.30 of one, and an epoch costs "
        "1.67 times as much as on 1."
    )


@pytest.mark.parametrize(
    ("given", "stop_at"),
    [
        (((1, 100.0), (2, 190.0), (4, 360.0)), 4),
        (((1, 100.0), (2, 140.0), (4, 390.0)), 1),  # what a larger gang brings does not heal it
        (((2, 180.0), (4, 350.0), (8, 380.0)), 4),  # no run on one: two are as good as two
        (((4, 90.0), (2, 180.0)), 2),  # slower with more
        (((8, 1.0),), 8),
    ],
)
def test_the_advice_stops_where_an_added_device_brings_less_than_half(
    given: tuple[tuple[int, float], ...], stop_at: int
) -> None:
    assert advise_scaling(sizes(*given)).stop_at == stop_at
