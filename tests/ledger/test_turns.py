"""A tick's time is bounded, and no run waits for ever behind the others."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest

from tests.bodies import BEGIN
from tracks_dagster.attempts.effects.watch import PRUNE_EVERY
from tracks_dagster.defs.sensors.watch_attempts import SWEEP_EVERY
from tracks_dagster.ledger.effects.projector import SCAN_EVERY
from tracks_dagster.ledger.effects.ticks import (
    AT_ONCE_MAX,
    ONE_BY_ONE,
    SEVERAL_AT_ONCE,
    Mark,
    Tick,
    TickPart,
    TimeSlice,
    format_cursor,
    read_cursor,
    run_parts,
    take_batch,
    take_turns,
)
from tracks_dagster.retry.effects.due import REVISIT_EVERY
from tracks_dagster.track.records import format_time


def ticking(step_s: float) -> Iterator[float]:
    now_s = 0.0
    while True:
        yield now_s
        now_s += step_s


def taken(run_ids: list[str], *, after: str | None, step_s: float) -> tuple[list[str], str | None]:
    clock = ticking(step_s)
    time_slice = TimeSlice(after=after, seconds=lambda: next(clock), seconds_max=10.0)
    tick = take_turns(run_ids, named, time_slice)
    return list(tick.done), tick.cut_at


def named(run_id: str) -> Tick[str]:
    return Tick(done=(run_id,))


def test_all_have_their_turn_where_time_suffices() -> None:
    assert taken(["a", "b", "c"], after=None, step_s=1.0) == (["a", "b", "c"], None)
    assert taken([], after=None, step_s=1.0) == ([], None)


def test_what_cannot_be_worked_on_fills_no_batch_for_ever() -> None:
    def work(name: str) -> Tick[str]:
        if name < "c":
            raise ValueError(name)
        return Tick(done=(name,))

    batches, after = [], None
    for _ in range(4):
        tick = take_batch(["d", "b", "a", "c", "e"], work, after=after, count_max=2)
        batches.append((tick.done, tick.is_done))
        after = tick.cut_at
    bad: tuple[tuple[str, ...], bool] = ((), False)
    assert batches == [bad, (("c", "d"), False), (("e",), True), bad]


def test_what_time_did_not_suffice_for_comes_first_in_the_next_tick() -> None:
    first, cut_at = taken(["a", "b", "c", "d", "e"], after=None, step_s=5.0)
    assert (first, cut_at) == (["a", "b"], "b")
    assert taken(["a", "b", "c", "d", "e"], after=cut_at, step_s=5.0) == (["c", "d"], "d")
    assert taken(["a", "b", "c", "d", "e"], after="d", step_s=5.0) == (["e", "a"], "a")


def test_a_run_that_takes_longer_than_a_tick_does_not_stop_the_next_one() -> None:
    assert taken(["a", "b"], after=None, step_s=100.0) == (["a"], "a")
    assert taken(["a", "b"], after="a", step_s=100.0) == (["b"], "b")


def test_after_a_cut_at_a_run_that_is_over_the_one_that_follows_it_by_name_comes_first() -> None:
    assert taken(["c", "a", "d"], after="b", step_s=1.0) == (["c", "d", "a"], None)
    assert taken(["a", "b"], after="gone", step_s=1.0) == (["a", "b"], None)


def test_no_run_starves_however_many_wait_and_whatever_is_decided_meanwhile() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    runs = [f"r-{number:03d}" for number in range(60)]
    # Those stay due, at the front of the list; whichever comes after them is decided, and is gone.
    waiting = set(chance.sample(runs, chance.choice([9, 10, 40])))
    due = sorted(runs, key=lambda run_id: (run_id not in waiting, chance.random()))
    seen: dict[str, int] = dict.fromkeys(runs, 0)
    after = None
    for _ in range(1 + len(runs) // 10):  # once in the order given, once round by name
        looked, after = taken(due, after=after, step_s=1.0)
        assert len(looked) == 10
        for run_id in looked:
            seen[run_id] += 1
        due = [run_id for run_id in due if run_id in waiting or not seen[run_id]]
    assert all(seen.values())


def test_several_runs_are_looked_at_at_once_and_what_came_of_them_keeps_their_order() -> None:
    together = threading.Barrier(AT_ONCE_MAX)

    def look(run_id: str) -> Tick[str]:
        together.wait(timeout=60)  # broken unless so many are in here at once
        return Tick(done=(run_id.upper(),))

    names = [f"r-{number}" for number in range(AT_ONCE_MAX)]
    done = take_turns(names, look, SEVERAL_AT_ONCE).done
    assert done == tuple(f"R-{number}" for number in range(AT_ONCE_MAX))


def test_no_further_run_is_begun_when_the_time_is_used_up() -> None:
    clock = ticking(5.0)
    time_slice = TimeSlice(seconds=lambda: next(clock), seconds_max=10.0, at_once=AT_ONCE_MAX)
    tick = take_turns(["a", "b", "c"], named, time_slice)
    assert (tick.done, tick.cut_at) == (("a", "b"), "b")


def test_where_there_is_no_time_at_all_nothing_is_begun_and_the_place_is_kept() -> None:
    tick = take_turns(["a", "b"], named, TimeSlice(seconds_max=0.0, after="a"))
    assert (tick.done, tick.cut_at) == ((), "a")


def test_an_error_that_nobody_foresaw_is_a_problem_of_the_run_that_it_is_met_at() -> None:
    def look(run_id: str) -> Tick[str]:
        if run_id == "a":
            raise RuntimeError("a bug")
        return Tick(done=(run_id,))

    for time_slice in (SEVERAL_AT_ONCE, ONE_BY_ONE):
        tick = take_turns(["a", "b", "c"], look, time_slice)
        assert tick.done == ("b", "c")
        [problem] = tick.problems
        assert problem.startswith("a: An error that nobody foresaw (RuntimeError: a bug) at ")


def test_an_error_that_nobody_foresaw_in_one_part_of_a_tick_leaves_the_others_their_turn() -> None:
    def fails(after: str | None) -> Tick[str]:
        raise RuntimeError("a bug")

    parts = [
        TickPart(name="bad", work=fails, every=timedelta(hours=1)),
        TickPart(name="good", work=lambda after: Tick(done=("done",))),
    ]
    ticks, cursor = run_parts(parts, None, BEGIN)
    assert ticks["good"].done == ("done",)
    assert "RuntimeError: a bug" in ticks["bad"].problems[0]
    again, _ = run_parts(parts, cursor, BEGIN)  # it does not rest
    assert again["bad"].problems == ticks["bad"].problems


@pytest.mark.parametrize(
    ("every", "rest"),
    [
        (SWEEP_EVERY, timedelta(minutes=1)),
        (REVISIT_EVERY, timedelta(minutes=5)),
        (PRUNE_EVERY, timedelta(hours=1)),
        (SCAN_EVERY, timedelta(days=1)),
    ],
)
def test_a_part_rests_once_it_is_done_and_not_before(every: timedelta, rest: timedelta) -> None:
    comes = iter([Tick(is_done=False, cut_at="r-1"), Tick(), Tick(cut_at="r-7")])
    given: list[str | None] = []

    def work(after: str | None) -> Tick[None]:
        given.append(after)
        return next(comes)

    part, cursor = TickPart(name="it", work=work, every=every), None
    soon = BEGIN + rest - timedelta(seconds=1)
    for now in (BEGIN, BEGIN, soon, BEGIN + rest, soon + rest):
        _, cursor = run_parts([part], cursor, now)
    assert given == [None, "r-1", None]  # at once after it was cut; then after each rest
    assert read_cursor(cursor)["it"] == Mark(done_at=format_time(BEGIN + rest), after="r-7")


def test_a_part_without_a_rest_is_done_at_every_tick_from_where_it_was_cut() -> None:
    def work(after: str | None) -> Tick[str]:
        return Tick(done=(after or "the first",), cut_at="r-1" if after is None else None)

    cursor, seen = None, []
    for _ in range(3):
        ticks, cursor = run_parts([TickPart(name="it", work=work)], cursor, BEGIN)
        seen += ticks["it"].done
    assert seen == ["the first", "r-1", "the first"]


def test_what_a_sensor_remembers_is_read_back_and_anything_else_remembers_nothing() -> None:
    marks = {"scan": Mark(done_at="2026-01-31T02:00:00.000000Z"), "decide": Mark(after="r-1")}
    assert read_cursor(format_cursor(marks)) == marks
    for text in (None, "", "r-1", "[]", '{"settle_after": "r-1"}', '{"scan": {"other": 1}}'):
        assert read_cursor(text) == {}
