"""How fast a run goes by its own steps, and between which ends the rest of it lies."""

from __future__ import annotations

from itertools import accumulate
from random import Random

import pytest

from tracks_dagster.attempts.pace import (
    STEPS_MAX,
    Span,
    format_span,
    mean_step,
    measure,
    time_for,
)
from tracks_dagster.track.text.units import about, cost_text


def ends(*lengths: float) -> list[float]:
    """Return when steps of these lengths end, after one that ended at 100 s."""
    return list(accumulate(lengths, initial=100.0))


def test_the_worked_example_of_the_module() -> None:
    pace = measure(3, ends(*[10.0, 12.0] * 4))
    assert pace is not None
    assert (pace.step_s, pace.windows, pace.window_steps, pace.attempt_id) == (11.0, 8, 1, 3)
    assert pace.spread_s == pytest.approx(1.069, abs=0.001)
    left = time_for(pace, 4)
    assert left.seconds == 44.0
    assert left.high_s == pytest.approx(44.0 + 6.2, abs=0.05)
    assert left.low_s == pytest.approx(44.0 - 6.2, abs=0.05)


def test_the_mean_of_the_steps_has_an_interval_of_its_own() -> None:
    pace = measure(3, ends(*[10.0, 12.0] * 4))
    assert pace is not None
    step = mean_step(pace)
    # 11 ± 2.365 · 1.069 / sqrt(8)
    assert step.low_s == pytest.approx(11.0 - 0.894, abs=0.001)
    assert step.high_s == pytest.approx(11.0 + 0.894, abs=0.001)


def test_fewer_than_two_steps_tell_no_pace_and_two_no_interval() -> None:
    assert measure(1, []) is None
    assert measure(1, [5.0]) is None
    pace = measure(1, [5.0, 7.0])
    assert pace is not None
    left = time_for(pace, 10)
    assert (left.seconds, left.low_s, left.high_s) == (20.0, None, None)


def test_few_steps_give_a_wide_interval_and_many_a_narrow_one() -> None:
    def width(count: int) -> float:
        pace = measure(1, ends(*[10.0, 12.0] * count))
        assert pace is not None
        left = time_for(pace, 100)
        assert left.low_s is not None
        assert left.high_s is not None
        return (left.high_s - left.low_s) / left.seconds

    widths = [width(count) for count in (1, 2, 5)]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 1.0
    # 40 steps are ten windows of two steps of each length: their means are all alike.
    assert width(20) == 0.0


def test_only_the_newest_steps_count() -> None:
    pace = measure(1, ends(*[100.0] * 500, *[2.0] * STEPS_MAX))
    assert pace is not None
    assert (pace.step_s, pace.steps) == (2.0, STEPS_MAX)


def test_a_clock_that_was_set_back_is_not_a_step() -> None:
    pace = measure(1, [100.0, 102.0, 50.0, 52.0])
    assert pace is not None
    assert (pace.step_s, pace.steps) == (2.0, 2)


def test_nothing_left_takes_no_time_for_certain() -> None:
    pace = measure(1, [5.0, 7.0])
    assert pace is not None
    left = time_for(pace, 0)
    assert (left.seconds, left.low_s, left.high_s) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.0, "0 s"), (0.44, "0.4 s"), (99.6, "100 s"), (2412.0, "40 min"), (9007.0, "2.5 h")],
)
def test_a_length_of_time_is_written_in_one_unit(seconds: float, words: str) -> None:
    assert about(seconds) == words


def test_an_interval_is_written_with_the_digits_that_it_needs() -> None:
    assert format_span(Span(seconds=2412.0, low_s=2388.0, high_s=2436.0)) == "40.2 ± 0.4 min"
    assert format_span(Span(seconds=9007.2, low_s=8971.2, high_s=9043.2)) == "2.50 ± 0.01 h"
    assert format_span(Span(seconds=2412.0)) == "40.2 min"
    assert format_span(Span(seconds=0.5)) == "0.5 s"
    assert format_span(Span(seconds=0.02, low_s=0.019, high_s=0.021)) == "20.0 ± 1.0 ms"


def test_the_interval_holds_about_as_often_as_it_says() -> None:
    seed = 11
    random, held, trials = Random(seed), 0, 400
    for _ in range(trials):
        pace = measure(1, ends(*(random.gauss(10.0, 2.0) for _ in range(60))))
        assert pace is not None
        left = time_for(pace, 50)
        assert left.low_s is not None
        assert left.high_s is not None
        held += left.low_s <= sum(random.gauss(10.0, 2.0) for _ in range(50)) <= left.high_s
    # 95 % of 400 are 380; five standard deviations of sqrt(400 * 0.95 * 0.05) = 4.4 below are 358.
    assert held >= 358, f"seed {seed}: {held} of {trials}"


def test_time_left_has_no_interval_of_nothing() -> None:
    assert format_span(Span(seconds=0.0, low_s=0.0, high_s=0.0)) == "0 s"
    assert format_span(Span(seconds=220.0, low_s=220.0, high_s=220.0)) == "3.7 min"
    assert format_span(Span(seconds=2.5, low_s=2.4, high_s=2.5003)) == "2.5000 ± 0.0003 s"


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (12.5, "12.50"),
        (0.25, "0.25"),
        (0.0, "0.00"),
        (0.0042, "0.0042"),
        (0.00000042, "0.00000042"),
    ],
)
def test_money_of_less_than_a_cent_has_two_digits_that_count(amount: float, text: str) -> None:
    assert cost_text(amount) == text
