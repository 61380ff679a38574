"""What a tick of a project's schedule does, and which crons are ones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tracks_dagster.projects.schedule import (
    LastRun,
    Retrain,
    Schedule,
    check_cron,
    decide_snapshot,
    decide_tick,
    longest_gap,
)
from tracks_dagster.track.bodies import SnapshotRef

AT = datetime(2026, 1, 31, 3, 0, tzinfo=UTC)
OLD, NEW = (SnapshotRef(dataset="corpus", snapshot_id=letter * 64) for letter in "ab")
WEEKLY = Schedule(cron="0 3 * * 1")
AT_3 = "tiny-20260131-0300"
SAME = "skipped: the snapshot did not change"
IF_NEW = Schedule(cron="0 3 * * 1", only_if_snapshot_differs=True)


def last(state: str, snapshot: SnapshotRef | None = OLD) -> LastRun:
    known = None if snapshot is None else snapshot.snapshot_id
    return LastRun(run_id="tiny-1", state=state, snapshot_id=known)


@pytest.mark.parametrize(
    ("schedule", "newest", "before", "is_declared", "expected"),
    [
        (WEEKLY, None, None, False, AT_3),
        (WEEKLY, OLD, last("succeeded"), True, AT_3),
        (WEEKLY, OLD, last("waiting"), False, "not finished (waiting)"),
        (IF_NEW, OLD, None, False, "tiny-aaaaaaaaaaaa"),
        (IF_NEW, NEW, last("succeeded"), False, "tiny-bbbbbbbbbbbb"),
        (IF_NEW, OLD, last("succeeded"), False, f"{SAME}: aaaaaaaaaaaa of corpus"),
        (IF_NEW, OLD, last("refused"), False, "is that of tiny-1 (refused)"),
        (IF_NEW, OLD, last("succeeded", NEW), True, "is that of tiny-aaaaaaaaaaaa"),
        (IF_NEW, None, last("succeeded", None), False, AT_3),
        (IF_NEW, NEW, last("running"), False, "tiny-1, the schedule's last run, is not finished"),
    ],
)
def test_a_tick_declares_a_run_or_says_why_not(
    schedule: Schedule,
    newest: SnapshotRef | None,
    before: LastRun | None,
    is_declared: bool,
    expected: str,
) -> None:
    answer = decide_tick(
        "tiny", schedule, at=AT, newest=newest, last=before, is_declared=is_declared
    )
    if isinstance(answer, str):
        assert answer.startswith("skipped: ")
        assert expected in answer
        return
    assert answer.run_id == expected
    assert answer.snapshot_id == (None if newest is None else newest.snapshot_id)


@pytest.mark.parametrize(
    ("seen", "before", "is_declared", "expected"),
    [
        ("none", None, False, "tiny-bbbbbbbbbbbb"),
        (OLD.snapshot_id, last("succeeded"), False, "tiny-bbbbbbbbbbbb"),
        (NEW.snapshot_id, None, False, "is not a new snapshot"),
        ("none", last("succeeded", NEW), False, f"{SAME}: bbbbbbbbbbbb of corpus"),
        ("none", last("succeeded"), True, f"{SAME}: bbbbbbbbbbbb of corpus"),
        ("none", last("running"), False, "is not finished"),
    ],
)
def test_a_new_snapshot_declares_one_run_no_matter_who_sees_it_first(
    seen: str, before: LastRun | None, is_declared: bool, expected: str
) -> None:
    answer = decide_snapshot("tiny", newest=NEW, seen=seen, last=before, is_declared=is_declared)
    if isinstance(answer, str):
        assert expected in answer
        return
    assert (answer.run_id, answer.snapshot_id) == (expected, NEW.snapshot_id)


def test_ids_of_the_longest_name_are_ids_of_runs() -> None:
    name = "n" * 26  # the longest that a project may have; a run's id has 40
    tick = decide_tick(name, WEEKLY, at=AT, newest=None, last=None, is_declared=False)
    data = decide_snapshot(name, newest=NEW, seen="none", last=None, is_declared=False)
    assert isinstance(tick, Retrain)
    assert isinstance(data, Retrain)
    assert (len(tick.run_id), len(data.run_id)) == (40, 39)


@pytest.mark.parametrize(
    "text", ["0 3 * * 1", "*/5 0-12/2 1,15 JAN-jun mon,7", "0 0 29 2 *", "0  0 31 4 mon"]
)
def test_a_cron_is_valid_here_and_in_dagster(text: str) -> None:
    from dagster._utils.schedules import is_valid_cron_schedule

    assert is_valid_cron_schedule(check_cron(text))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("@daily", "write five fields"),
        ("0 3 * *", "write five fields"),
        ("60 3 * * *", "'60' is not a valid minute; write 0 to 59"),
        ("0 3 * jux *", "'jux' is not a valid month"),
        ("0 3 * * 5-1", "'5-1' is not a valid day of week"),
        ("*/0 * * * *", "'*/0' is not a valid minute"),
        ("5/15 * * * *", "'5/15' is not a valid minute"),
        ("1, * * * *", "'' is not a valid minute"),
        ("0 0 31 4,6 *", "never comes"),
        ("0 0 30 feb *", "never comes"),
    ],
)
def test_a_cron_that_is_not_one_or_never_comes_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=r"cron|never") as error:
        check_cron(text)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("cron", "days"),
    [
        ("*/10 * * * *", 1 / 24),
        ("0 3 * * *", 1),
        ("0 */6 * * *", 1),
        ("0 3 * * 1", 7),
        ("0 3 1 * *", 62),
        ("0 3 1 6 *", 366),
    ],
)
def test_no_two_ticks_of_a_cron_lie_further_apart(cron: str, days: float) -> None:
    assert longest_gap(cron) == timedelta(days=days)
