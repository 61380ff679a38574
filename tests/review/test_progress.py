"""Fifty dead retries: the curve of burn rises, that of progress does not."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.histories import History
from tracks_dagster.review.progress import ATTEMPTS_MIN, progress_and_burn


def storm(retries: int) -> History:
    """A run that kept 20 steps, and then retried so often without one; each took 360 device seconds."""
    history = History().declare()
    history.open().supervise().place().restore().commit(20)
    history.end("preempted", last_step=22, device_seconds=3600.0)
    for _ in range(retries):
        history.at += timedelta(minutes=3)
        history.open().supervise().place().restore()
        history.end("node_failure", last_step=21, device_seconds=360.0)
    return history


def test_dead_retries_raise_the_burn_alone() -> None:
    history = storm(50)
    steps, hours = progress_and_burn(history.state, history.at)
    kept = [point.value for point in steps.series[0].points]
    burnt = [point.value for point in hours.series[0].points]
    assert kept[0] == burnt[0] == 0.0
    assert set(kept[1:]) == {20.0}
    assert burnt[1] == pytest.approx(1.0)
    assert burnt[-1] == pytest.approx(1.0 + 50 * 0.1)
    assert burnt == sorted(burnt)
    times = [point.x for point in steps.series[0].points]
    assert times == sorted(times) == [point.x for point in hours.series[0].points]
    assert times[-1] > 2.5  # hours


def test_a_run_of_one_attempt_has_no_such_curves() -> None:
    history = storm(0)
    assert len(history.state.attempts) < ATTEMPTS_MIN
    assert progress_and_burn(history.state, history.at) == ()
    opened = history.open()
    assert len(progress_and_burn(opened.state, opened.at)) == 2
