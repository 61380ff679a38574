"""When a sensor ticks, by rows as the ledger would give them and seconds of a clock of the test."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes import FakeObjectStore
from tests.histories import History
from tracks_dagster.ledger.effects.database import open_ledger
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.track import names
from tracks_dagster.track.errors import TracksError
from tracks_dagster.training.journal import SHIP_EVERY_S
from tracks_dagster.wings.embedded.edge.paced_sensors import (
    POLL_S_MAX,
    ROUND_S,
    SETTLED_S,
    UNCHANGED_S_MAX,
    OpenWork,
)
from tracks_dagster.wings.embedded.sensor_pace import (
    HEALTH_S,
    IDLE_S,
    IDLE_WATCH_S,
    OPEN_S,
    SEND_S,
    UNKNOWN,
    Pace,
    Work,
    work_by_sensor,
)

OPEN = Work(kind="run", name="r-1", number=1)
KILLED = Work(kind="run", name="r-1", number=1, reason="native_crash")
AGAIN = Work(kind="run", name="r-1", number=2)
LAUNCH, WATCH, EVALS = names.LAUNCH_ATTEMPTS, names.WATCH_ATTEMPTS, names.RUN_EVALS
HEALTH = names.WATCH_HEALTH
SEND = names.SEND_NOTIFICATIONS


@pytest.mark.parametrize(
    ("work", "sensors"),
    [
        (OPEN, {LAUNCH, WATCH}),
        (Work(kind="run", name="r-1", number=0), {WATCH}),  # declared, without an attempt
        (KILLED, {names.RETRY_INFRASTRUCTURE}),
        (Work(kind="run", name="r-1", number=1, reason="preempted"), {names.RETRY_PREEMPTED}),
        (Work(kind="run", name="r-1", number=1, reason="gpu_oom"), {names.RETRY_OOM}),
        (Work(kind="run", name="r-1", number=1, reason="nan_loss"), {names.RETRY_NUMERICS}),
        (Work(kind="run", name="r-1", number=1, reason="code_error"), {WATCH}),
        (Work(kind="run", name="r-1", number=1, reason="completed"), {WATCH, EVALS}),
        (Work(kind="news", name="r-1", number=7), {SEND}),
        (Work(kind="study", name="lr-depth", number=4), {names.TUNE_STUDIES, names.SHOW_STUDIES}),
        (Work(kind="commits", name="r-1", number=0), {EVALS}),
        (Work(kind="eval", name="r-1/loss@40", number=1), {EVALS, WATCH}),
        (Work(kind="dataset", name="datasets/words", number=3), {names.SHOW_DATASETS}),
    ],
    ids=lambda given: f"{given.kind}-{given.reason}" if isinstance(given, Work) else "",
)
def test_each_row_is_for_the_sensors_that_can_do_something_about_it(
    work: Work, sensors: set[str]
) -> None:
    runs = {HEALTH} if work.kind == "run" else set()
    assert {name for name, each in work_by_sensor([work]).items() if each} == sensors | runs


def test_a_home_is_idle_once_it_was_looked_at_and_nothing_but_datasets_is_there() -> None:
    words = Work(kind="dataset", name="datasets/words", number=3)
    assert not UNKNOWN.is_idle
    assert UNKNOWN.next([], 1.0).is_idle
    assert UNKNOWN.next([words], 1.0).is_idle
    assert not UNKNOWN.next([words, OPEN], 1.0).is_idle


def due(pace: Pace, *, ticked_s: float, now_s: float) -> set[str]:
    return {name for name in pace.work if pace.is_due(name, ticked_s=ticked_s, now_s=now_s) is True}


def test_from_the_end_of_an_attempt_to_the_launch_of_the_next_no_sensor_waits_for_its_interval() -> (
    None
):
    training = UNKNOWN.next([OPEN], 100.0)
    ended = training.next([KILLED], 110.25)
    assert ended.changed_after(110.0)
    assert due(ended, ticked_s=109.0, now_s=110.3) == {names.RETRY_INFRASTRUCTURE}
    opened = ended.next([AGAIN], 110.75)
    assert opened.changed_after(110.3)
    assert due(opened, ticked_s=110.3, now_s=110.8) == {LAUNCH, WATCH}
    assert not opened.next([AGAIN], 111.0).changed_after(110.8)


def test_an_eval_waits_for_no_interval_after_a_commit_or_the_end_of_what_has_its_device() -> None:
    committed = Work(kind="commits", name="r-1", number=3)
    training = UNKNOWN.next([OPEN, committed], 100.0)
    again = training.next([OPEN, replace(committed, number=4)], 110.0)
    assert due(again, ticked_s=109.0, now_s=110.1) == {EVALS}
    measured = Work(kind="eval", name="r-1/loss@40", number=1)
    waits = again.next([OPEN, replace(committed, number=4), measured], 110.5)
    ended = waits.next([KILLED, measured], 120.0)
    assert EVALS in due(ended, ticked_s=119.0, now_s=120.1)


def test_a_gang_waits_for_no_interval_after_the_end_of_an_eval_that_has_its_device() -> None:
    measured = Work(kind="eval", name="r-2/loss@40", number=1)
    waits = UNKNOWN.next([OPEN, measured], 100.0)
    assert LAUNCH in due(waits.next([OPEN], 110.0), ticked_s=109.0, now_s=110.1)


def test_what_has_work_ticks_every_five_seconds_and_what_has_none_once_a_minute() -> None:
    pace = UNKNOWN.next([OPEN], 100.0)
    assert due(pace, ticked_s=101.0, now_s=101.0 + OPEN_S - 0.1) == set()
    assert due(pace, ticked_s=101.0, now_s=101.0 + OPEN_S) == {LAUNCH, WATCH}
    nothing = pace.next([Work(kind="dataset", name="datasets/words", number=3)], 150.0)
    assert due(nothing, ticked_s=149.0, now_s=150.0) == {names.SHOW_DATASETS}
    nothing = nothing.next([Work(kind="dataset", name="datasets/words", number=3)], 200.0)
    assert not nothing.changed_after(150.0)
    assert due(nothing, ticked_s=201.0, now_s=201.0 + IDLE_WATCH_S) == {WATCH, SEND}
    assert due(nothing, ticked_s=201.0, now_s=201.0 + IDLE_S) == set(nothing.work) - {HEALTH}


def test_of_the_minute_from_a_fault_to_its_message_half_is_left_to_steps_and_a_dead_daemon() -> (
    None
):
    shipped_s = SHIP_EVERY_S  # the journal's lines
    judged_s = HEALTH_S + ROUND_S  # a tick that is due, at the next round
    sent_s = POLL_S_MAX  # what is news ticks at once
    assert shipped_s + judged_s + sent_s <= 30.0


def test_the_health_of_runs_is_looked_at_four_times_a_minute_and_never_where_none_goes_on() -> None:
    pace = UNKNOWN.next([OPEN], 100.0)
    assert not pace.is_due(HEALTH, ticked_s=99.0, now_s=99.0 + HEALTH_S - 0.1)  # new, and no matter
    assert pace.is_due(HEALTH, ticked_s=99.0, now_s=99.0 + HEALTH_S)
    killed = pace.next([KILLED], 200.0)
    assert not killed.is_due(HEALTH, ticked_s=190.0, now_s=200.5)
    idle = pace.next([], 200.0)
    assert not idle.is_due(HEALTH, ticked_s=200.0, now_s=200.0 + 1e6)


def test_messages_are_sent_at_once_after_an_alert_and_the_end_of_an_attempt_waits_its_turn() -> (
    None
):
    alert = Work(kind="news", name="r-1", number=7)
    pace = UNKNOWN.next([OPEN], 100.0)
    assert not pace.is_due(SEND, ticked_s=101.0, now_s=101.0 + SEND_S - 0.1)
    alerted = pace.next([OPEN, alert], 110.0)
    assert due(alerted, ticked_s=109.0, now_s=110.0) == {SEND}
    assert not alerted.is_due(SEND, ticked_s=110.5, now_s=110.5 + SEND_S - 0.1)
    assert alerted.is_due(SEND, ticked_s=110.5, now_s=110.5 + SEND_S)
    assert SEND not in due(alerted.next([KILLED, alert], 120.0), ticked_s=119.0, now_s=120.5)
    assert alerted.next([], 120.0).is_due(SEND, ticked_s=119.0, now_s=119.0 + SEND_S)


def test_a_run_that_waits_for_its_backoff_is_looked_at_again_after_a_quarter_of_the_time_waited() -> (
    None
):
    pace = UNKNOWN.next([OPEN], 90.0).next([KILLED], 100.0)
    retry = names.RETRY_INFRASTRUCTURE
    # It is due x after a tick where x is a quarter of the time waited by then: x = waited / 3.
    for waited_s, after_s in ((0.3, 0.5), (3.0, 1.0), (9.0, 3.0), (15.0, OPEN_S), (600.0, OPEN_S)):
        ticked_s = 100.0 + waited_s
        assert pace.is_due(retry, ticked_s=ticked_s, now_s=ticked_s + after_s + 0.01)
        assert not pace.is_due(retry, ticked_s=ticked_s, now_s=ticked_s + after_s - 0.01)
        assert pace.round_s(ticked_s) <= after_s


def test_a_tick_that_was_under_way_when_something_came_is_followed_by_another() -> None:
    pace = UNKNOWN.next([OPEN], 100.0).next([AGAIN], 103.0)
    assert LAUNCH in due(
        pace, ticked_s=102.9, now_s=103.9
    )  # it began before, and saw nothing of it
    assert LAUNCH not in due(pace, ticked_s=103.1, now_s=103.9)


def test_after_a_clock_was_set_back_every_sensor_ticks() -> None:
    pace = UNKNOWN.next([], 100.0)
    assert due(pace, ticked_s=3700.0, now_s=100.0) == set(pace.work)


def test_what_is_not_known_here_and_a_ledger_that_is_away_leave_the_definitions_interval() -> None:
    pace = UNKNOWN.next([OPEN], 100.0)
    assert pace.is_due("a_stage_gate", ticked_s=0.0, now_s=1000.0) is None
    assert UNKNOWN.is_due(LAUNCH, ticked_s=0.0, now_s=1000.0) is None


def test_the_ledger_is_read_again_only_once_its_file_has_changed(tmp_path: Path) -> None:
    file, store, seconds = tmp_path / "ledger.db", FakeObjectStore(), [0.0]
    ledger = open_ledger(f"sqlite:///{file}")

    def settle(ago_s: float) -> None:
        for path in tmp_path.iterdir():
            written = path.stat().st_mtime - ago_s
            os.utime(path, (written, written))

    def declare(run_id: str) -> None:
        History(run_id).declare().write_to(store)
        Projector(store, ledger).scan()

    asked = OpenWork(ledger, file, seconds=lambda: seconds[0])
    assert asked.changed() == []
    assert asked.changed() == []  # it was written a moment ago: what comes now may look the same
    settle(2 * SETTLED_S)
    assert asked.changed() == []
    assert asked.changed() is None
    declare("r-1")
    assert asked.changed() == [Work(kind="run", name="r-1", number=0)]
    settle(3 * SETTLED_S)
    asked.changed()
    assert asked.changed() is None
    seconds[0] += UNCHANGED_S_MAX  # whatever a file system says of its times
    assert asked.changed() == [Work(kind="run", name="r-1", number=0)]
    assert asked.changed() is None
    file.unlink()
    with pytest.raises(TracksError):
        asked.changed()
    with pytest.raises(TracksError):
        asked.changed()


def test_a_ledger_that_is_not_a_file_is_read_each_time(ledger: Ledger) -> None:
    asked = OpenWork(ledger, None)
    assert asked.changed() == asked.changed() == []
