"""A tick's time is bounded, and no run waits for ever behind the others."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import pytest

from tracks_dagster.retry.effects.turns import AT_ONCE_MAX, Turns
from tracks_dagster.retry.watch_cursor import WatchCursor, read_cursor


def ticking(step_s: float) -> Iterator[float]:
    now_s = 0.0
    while True:
        yield now_s
        now_s += step_s


def taken(run_ids: list[str], *, after: str | None, step_s: float) -> tuple[list[str], str | None]:
    clock = ticking(step_s)
    turns = Turns(run_ids, after=after, seconds=lambda: next(clock), part_s_max=10.0)
    return list(turns), turns.cut_at


def test_all_have_their_turn_where_time_suffices() -> None:
    assert taken(["a", "b", "c"], after=None, step_s=1.0) == (["a", "b", "c"], None)
    assert taken([], after=None, step_s=1.0) == ([], None)


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

    def look(run_id: str) -> str:
        together.wait(timeout=60)  # broken unless so many are in here at once
        return run_id.upper()

    turns = Turns([f"r-{number}" for number in range(AT_ONCE_MAX)])
    assert turns.work(look) == [f"R-{number}" for number in range(AT_ONCE_MAX)]


def test_no_further_run_is_begun_when_the_time_is_used_up() -> None:
    clock = ticking(5.0)
    turns = Turns(["a", "b", "c"], seconds=lambda: next(clock), part_s_max=10.0)
    assert turns.work(str.upper) == ["A", "B"]
    assert turns.cut_at == "b"


def test_an_error_of_one_look_is_raised_when_the_others_are_done() -> None:
    done = []

    def look(run_id: str) -> None:
        if run_id == "a":
            raise ValueError("a bug")
        done.append(run_id)

    with pytest.raises(ValueError, match="a bug"):
        Turns(["a", "b", "c"]).work(look)
    assert sorted(done) == ["b", "c"]


def test_what_a_watcher_remembers_is_read_back_and_anything_else_remembers_nothing() -> None:
    cursor = WatchCursor(scanned_at="2026-01-31T02:00:00.000000Z", settle_after="r-1")
    assert read_cursor(cursor.text()) == cursor
    for text in (None, "", "2026-01-31", "[]", '{"other": 1}'):
        assert read_cursor(text) == WatchCursor()
