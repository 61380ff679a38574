"""Every second of a run in one bucket: worked examples, and invariants over generated histories."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import time_sums
from tests.bodies import BEGIN, placed
from tests.fakes import FakeObjectStore
from tests.histories import History
from tests.random_histories import random_run
from tests.stories import Story
from tests.time_sums import assert_accounts, assert_sums
from tests.timed_histories import timed_run
from tracks_dagster.ledger.time_buckets import BUCKETS, RunTime, run_buckets
from tracks_dagster.ledger.track_states import run_rows
from tracks_dagster.track.bodies import ComputeRequest, TimeSpent
from tracks_dagster.track.records import Kind, format_time
from tracks_dagster.track.states import run_fold
from tracks_dagster.track.states.run_state import RunState

DAY_S = 24 * 3600


def at(seconds: float) -> datetime:
    """So many seconds after the run's declaration."""
    return BEGIN + timedelta(seconds=seconds)


class Timed:
    """A run whose records stand at the seconds that a test names."""

    def __init__(self, **declared: object) -> None:
        self.history = History("r-1").declare(**declared)

    def opened(self, seconds: float, **changes: object) -> Timed:
        self.history.at = at(seconds)
        self.history.open(**changes)
        return self

    def placed(self, seconds: float, *, world_size: int = 2) -> Timed:
        self.history.at = at(seconds)
        ranks = placed("launch-1").ranks[:1]  # of a large gang a record tells rank 0 only
        self.history.place(world_size=world_size, ranks=ranks)
        return self

    def restored(self, seconds: float) -> Timed:
        self.history.at = at(seconds)
        self.history.restore()
        return self

    def committed(self, seconds: float, step: int, **spent: float) -> Timed:
        self.history.at = at(seconds)
        self.history.commit(step, spent=TimeSpent(**spent) if spent else None)
        return self

    def ended(
        self,
        seconds: float,
        reason: str = "preempted",
        *,
        started: float | None = None,
        finished: float | None = None,
        stepped: float | None = None,
        last_step: int | None = None,
        **spent: float,
    ) -> Timed:
        self.history.at = at(seconds)
        self.history.end(
            reason,
            last_step=last_step,
            started_at=None if started is None else format_time(at(started)),
            finished_at=None if finished is None else format_time(at(finished)),
            last_stepped_at=None if stepped is None else format_time(at(stepped)),
            spent=TimeSpent(**spent) if spent else None,
        )
        return self

    def finished(self, seconds: float) -> Timed:
        self.history.at = at(seconds)
        self.history.finish()
        return self

    def time(self, seconds: float = 10_000.0) -> RunTime:
        return run_buckets(self.history.state, as_of=at(seconds))


def buckets(time: RunTime, attempt_id: int = 1) -> dict[str, float]:
    """The buckets of an attempt that hold anything."""
    seconds = time.attempts[attempt_id - 1].seconds
    return {bucket: round(s, 6) for bucket, s in seconds.items() if s}


def test_an_attempt_divides_into_its_phases() -> None:
    run = Timed().opened(10).placed(40).restored(60).committed(200, 20, steps_s=90.0, saving_s=5.0)
    run.ended(
        230, started=30, finished=220, last_step=23, steps_s=110.0, data_s=20.0, saving_s=10.0
    )
    run.opened(300).placed(310).restored(320).ended(420, "completed", started=305, finished=415)
    time = run.finished(450).time()
    assert buckets(time) == {
        "queue": 20.0,  # opened at 10, the first rank at 30
        "startup": 10.0,  # placed at 40
        "restore": 20.0,  # restored at 60
        "step_kept": 90.0,  # what was spent at the commit of step 20, from which attempt 2 resumed
        "step_lost": 20.0,  # 110 - 90
        "data_wait": 20.0,
        "checkpoint_blocking": 10.0,
        "unknown": 20.0,  # 220 - 60 - 110 - 20 - 10
        "detection": 10.0,  # the ranks ended at 220, the record says so at 230
    }
    assert (time.wall_s, time.idle_s) == (450.0, 110.0)  # 10, 300 - 230, 450 - 420
    devices = {b: s for b, s in time.attempts[0].device_seconds.items() if s}
    assert sum(devices.values()) == pytest.approx(2 * 190.0)  # two ranks from 30 to 220
    assert "detection" not in devices
    assert_sums(time)


def test_without_a_commit_that_tells_seconds_divide_as_steps_do() -> None:
    run = Timed().opened(0).placed(0).restored(0).committed(50, 20)
    run.ended(100, started=0, finished=100, last_step=25, steps_s=100.0).opened(100)
    assert buckets(run.time(100)) == {"step_kept": 80.0, "step_lost": 20.0}


def test_measured_seconds_never_exceed_the_window() -> None:
    run = Timed().opened(0).placed(0).restored(40)
    run.ended(100, started=0, finished=100, last_step=5, steps_s=90.0, data_s=30.0)
    # 60 s stand against 120 s that were measured: each counts half
    assert buckets(run.time(100)) == {"restore": 40.0, "step_lost": 45.0, "data_wait": 15.0}


def test_a_hang_is_detected_from_its_last_step_on_and_holds_its_devices() -> None:
    run = Timed().opened(0).placed(0).restored(0)
    run.ended(420, "hang", started=0, finished=400, stepped=100, last_step=9, steps_s=90.0)
    time = run.time(420)
    assert buckets(time) == {"step_lost": 90.0, "unknown": 10.0, "detection": 320.0}
    assert time.attempts[0].device_seconds["detection"] == 600.0  # two devices from 100 to 400


def test_a_lost_node_is_detected_from_the_last_step_that_was_heard_of() -> None:
    run = Timed().opened(0).placed(0).restored(0)
    run.ended(420, "node_failure", started=0, finished=400, stepped=100, last_step=9, steps_s=90.0)
    assert buckets(run.time(420)) == {"step_lost": 90.0, "unknown": 10.0, "detection": 320.0}


def test_a_hang_before_the_first_step_is_detected_from_the_restore_on() -> None:
    run = Timed().opened(0).placed(0).restored(30).ended(90, "hang", started=0, finished=80)
    assert buckets(run.time(90)) == {"restore": 30.0, "detection": 60.0}


def test_a_later_reading_counts_from_when_it_was_made() -> None:
    run = Timed().opened(0).placed(0).restored(0)
    run.ended(100, "unknown", started=0, finished=100, stepped=40, last_step=9, steps_s=40.0)
    run.history.at = at(500)
    run.history.reclassify(1, "hang")
    assert buckets(run.time(499)) == {"step_lost": 40.0, "unknown": 60.0}
    assert buckets(run.time(500)) == {"step_lost": 40.0, "detection": 60.0}
    assert run.time(499).attempts[0].reason == "unknown"


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (Timed().opened(0).ended(60, "scheduling_timeout"), {"queue": 60.0}),
        (
            Timed().opened(0).ended(60, "code_error", started=10, finished=50),
            {"queue": 10.0, "startup": 40.0, "detection": 10.0},
        ),
        (
            Timed().opened(0).placed(20).ended(60, "code_error", started=10, finished=50),
            {"queue": 10.0, "startup": 10.0, "restore": 30.0, "detection": 10.0},
        ),
        (
            Timed().opened(0).placed(20).restored(30).ended(60, "preempted"),
            {"queue": 20.0, "restore": 10.0, "unknown": 30.0},
        ),
        (
            # clocks that run backwards: placed before it was opened, finished before it started
            Timed().opened(50).placed(20).restored(30).ended(60, started=55, finished=40),
            {"detection": 10.0},
        ),
        (
            # a zombie: its ranks were seen long after its end, which its record tells
            Timed().opened(0).placed(0).restored(0).ended(60, started=0, finished=500),
            {"unknown": 60.0},
        ),
    ],
    ids=[
        "never started",
        "never placed",
        "never restored",
        "no rank times",
        "clocks backwards",
        "a zombie",
    ],
)
def test_what_was_not_seen_goes_to_the_phase_before(run: Timed, expected: dict[str, float]) -> None:
    assert buckets(run.time(60)) == expected
    assert_sums(run.time(60))
    assert_sums(run.opened(90).time(120))


def test_a_rollback_to_before_an_attempt_loses_all_that_it_ran() -> None:
    run = Timed().opened(0).placed(0).restored(0).committed(50, 10, steps_s=50.0)
    run.ended(100, started=0, finished=100, last_step=10, steps_s=50.0)
    first = run.history.state.checkpoints[0].ref
    run.opened(100).placed(100).restored(100).committed(150, 20, steps_s=50.0)
    run.ended(200, started=100, finished=200, last_step=20, steps_s=50.0)
    before = run.time(200)
    run.opened(200, resume=first).placed(200).restored(200).ended(300, started=200, finished=300)
    after = run.time(300)
    assert buckets(before, 2) == {"step_kept": 50.0, "unknown": 50.0}
    assert buckets(after, 2) == {"step_lost": 50.0, "unknown": 50.0}
    assert buckets(after, 1) == buckets(before, 1) == {"step_kept": 50.0, "unknown": 50.0}


def test_of_an_open_attempt_its_newest_commit_tells() -> None:
    run = Timed().opened(0).placed(5).restored(10).committed(60, 20, steps_s=45.0, data_s=5.0)
    assert buckets(run.time(59)) == {"queue": 5.0, "restore": 5.0, "unknown": 49.0}
    assert buckets(run.time(100)) == {
        "queue": 5.0,
        "restore": 5.0,
        "step_kept": 45.0,
        "data_wait": 5.0,
        "unknown": 40.0,
    }


def test_the_journals_can_tell_more_of_an_open_attempt() -> None:
    state = Timed().opened(0).placed(0).restored(0).history.state
    spent = {1: (7, TimeSpent(steps_s=30.0, eval_s=10.0))}
    time = run_buckets(state, as_of=at(50), spent=spent)
    assert buckets(time) == {"step_kept": 30.0, "inline_eval": 10.0, "unknown": 10.0}
    assert time.attempts[0].kept_steps == 7


def test_waiting_for_evals_after_the_last_attempt_is_idle() -> None:
    run = Timed().opened(0).placed(0).restored(0).ended(50, "completed", started=0, finished=50)
    assert run.finished(350).time().idle_s == 300.0


def test_before_its_declaration_a_run_has_no_time() -> None:
    time = Timed().opened(0).time(-1)
    assert (time.wall_s, time.idle_s, time.attempts) == (0.0, 0.0, ())


def test_1024_devices_for_30_days_are_737280_device_hours() -> None:
    run = Timed(compute=ComputeRequest(ranks=1024)).opened(0).placed(0, world_size=1024).restored(0)
    run.ended(30 * DAY_S, "completed", started=0, finished=30 * DAY_S)
    time = run.finished(30 * DAY_S).time(31 * DAY_S)
    assert sum(time.device_seconds.values()) / 3600 == 737_280.0


def prefix(history: History, moment: datetime) -> RunState | None:
    """The state that the records up to a moment tell."""
    early = [record for record in history.records if record.at <= moment]
    return run_fold.fold(early)


@given(seed=st.integers(0, 2**32))
def test_the_buckets_of_any_history_sum_to_its_wall_time(seed: int) -> None:
    rng = Random(seed)
    history = timed_run(rng, skewed=seed % 2 == 1) if seed % 3 else random_run(rng)
    last = max(record.at for record in history.records)
    for _ in range(4):
        moment = BEGIN + rng.random() * 1.2 * (last - BEGIN)
        assert_sums(run_buckets(history.state, as_of=moment), why=f"seed {seed}, {moment}")
    time = run_buckets(history.state, as_of=last)
    steps = {a.attempt_id: a.kept_steps + a.lost_steps for a in time.attempts}
    assert all(count >= 0 for count in steps.values()), f"seed {seed}"


@given(seed=st.integers(0, 2**32))
def test_the_account_at_a_time_is_that_of_the_records_up_to_then(seed: int) -> None:
    rng = Random(seed)
    history = timed_run(rng)
    for record in history.records:
        moment = record.at + timedelta(microseconds=rng.choice([0, 1, 1_000_000]))
        state = prefix(history, moment)
        assert state is not None
        then = run_buckets(state, as_of=moment)
        assert run_buckets(history.state, as_of=moment) == then, f"seed {seed}, {record.seq}"


@pytest.mark.parametrize("kind", ["whole", "refused"])
def test_the_buckets_of_the_stories_sum_to_their_wall_time(
    kind: str, store: FakeObjectStore
) -> None:
    story = Story(store)
    story.whole() if kind == "whole" else story.refused()
    for record in story.history.records:
        assert_sums(run_buckets(story.history.state, as_of=record.at))


def test_the_check_of_every_run_of_the_suite_finds_a_second_that_stands_twice(
    store: FakeObjectStore, accounted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = Story(store).whole().history.state
    run_rows(state)
    assert accounted == []
    with monkeypatch.context() as patch:
        patch.setattr(time_sums, "run_buckets", twice)
        run_rows(state)
    assert "0:00:00 after record" in accounted.pop()
    assert_accounts(state)


def twice(state: RunState, *, as_of: datetime) -> RunTime:
    """An account that counts the idle seconds twice."""
    time = run_buckets(state, as_of=as_of)
    return replace(time, wall_s=time.wall_s - time.idle_s)


def test_generated_histories_hold_what_the_account_has_to_bear() -> None:
    runs = [timed_run(Random(seed)).state for seed in range(100)]
    attempts = [attempt for run in runs for attempt in run.attempts]
    assert any(a.placed is None and a.ended for a in attempts)
    assert any(a.restored is None and a.placed and a.ended for a in attempts)
    assert any(a.is_open for a in attempts)
    assert any(a.reclassified for a in attempts)
    ends = [a.ended for a in attempts if a.ended]
    assert any(e.spent is None for e in ends)
    assert any(e.started_at is None for e in ends)
    assert any(run.finished is None for run in runs)
    accounts = [run_buckets(run, as_of=run.head.at) for run in runs]
    for bucket in BUCKETS:
        assert any(account.seconds[bucket] > 0.0 for account in accounts), bucket
    assert any(record.kind is Kind.NOTE for record in timed_run(Random(1)).records)
