"""Which branches are asked what they expect, and what is said of it at the end."""

from __future__ import annotations

import pytest

from tests.bodies import CONFIG
from tests.histories import History
from tracks_dagster.attempts.expectation import compare, question_of, times_its_source
from tracks_dagster.track.bodies import ComputeRequest


def source(**declared: object) -> History:
    """A run that took 600 device seconds for 30 steps, with a third of them in a second attempt."""
    config = {**CONFIG, "global_batch": 24}
    history = History("first").declare(
        **{"compute": ComputeRequest(ranks=2), "config": config, **declared}
    )
    history.open().supervise().place().restore().commit(20)
    history.end("preempted", last_step=20, device_seconds=400.0)
    history.open().supervise().place().restore().commit(30)
    return history.end(last_step=30, device_seconds=200.0).finish()


@pytest.mark.parametrize(
    ("steps", "ranks", "batch", "times"),
    [
        (59, 2, 24, None),  # 59 of 20 s a step: 1.97 times
        (60, 2, 24, 2.0),
        (30, 4, 24, 2.0),  # twice the devices, nobody knows yet how much faster
        (20, 2, 72, 2.0),  # three times the samples
        (60, 2, None, 2.0),
        (None, 2, 24, None),  # nobody knows how long
    ],
)
def test_a_branch_of_twice_its_source_is_asked(
    steps: int | None, ranks: int, batch: int | None, times: float | None
) -> None:
    state = source().state
    found = times_its_source(state, steps=steps, ranks=ranks, global_batch=batch)
    assert found == (None if times is None else pytest.approx(times))
    words = question_of("second", state, 2.0)
    assert words.startswith("second would cost about 2.0 times as much as first")
    assert "10 min of a device" in words


def test_a_source_that_ran_nothing_says_nothing() -> None:
    history = History("first").declare().open().end("code_error", last_step=None)
    assert times_its_source(history.state, steps=10**6, ranks=8, global_batch=None) is None


def test_what_was_expected_stands_beside_what_came_of_it() -> None:
    branch = History("second").declare(expect="loss below 2.4")
    branch.open().supervise().place().restore()
    assert list(compare(branch.state, None)) == [
        "expected: loss below 2.4",
        "so far: no checkpoint; 0 s of a device",
    ]
    branch.commit(90, metrics={"loss": 2.5}).end(last_step=90, device_seconds=1800.0).finish()
    assert list(compare(branch.state, source().state)) == [
        "expected: loss below 2.4",
        "came of it: loss 2.5 at step 90; 30 min of a device",
        "first, which it branched from: loss 3.5 at step 30; 10 min of a device",
    ]
    assert list(compare(source().state, None)) == []
