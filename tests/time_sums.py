"""The invariant of the account of time: every second of a run stands in exactly one bucket."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tracks_dagster.ledger.time_buckets import BUCKETS, HOLDING, RunTime, run_buckets
from tracks_dagster.track.states.run_state import RunState

END_OF_TIME = datetime.max.replace(tzinfo=UTC)


def assert_sums(time: RunTime, *, why: str = "") -> None:
    """Every second stands in one bucket, none in two; devices are held only while they can be."""
    assert time.idle_s >= 0.0, why
    if time.attempts:
        assert sum(a.idle_s for a in time.attempts) == pytest.approx(time.idle_s), why
    assert sum(time.seconds.values()) == pytest.approx(time.wall_s, abs=1e-5), why
    for attempt in time.attempts:
        assert tuple(attempt.seconds) == BUCKETS == tuple(attempt.device_seconds), why
        assert all(s >= 0.0 for s in attempt.seconds.values()), why
        for bucket, device_s in attempt.device_seconds.items():
            assert 0.0 <= device_s <= attempt.devices * attempt.seconds[bucket] + 1e-6, why
            assert bucket in HOLDING or device_s == 0.0, why


def assert_accounts(state: RunState) -> None:
    """The run's account holds at its newest record, and an hour later."""
    for later in (timedelta(), timedelta(hours=1)):
        left = END_OF_TIME - state.head.at  # a forged record may be of the year 9999
        time = run_buckets(state, as_of=state.head.at + min(later, left))
        assert_sums(time, why=f"{state.run_id}, {later} after record {state.head.seq}")
