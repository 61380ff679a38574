"""A value is made once for all that ask at the same time, and again when it is old."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tracks_dagster.wings.watch.board.effects import fresh
from tracks_dagster.wings.watch.board.effects.fresh import Fresh


class Clock:
    """A monotonic clock that the test moves."""

    def __init__(self) -> None:
        self.at = 100.0

    def monotonic(self) -> float:
        """Return the seconds."""
        return self.at


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that values grow old by."""
    found = Clock()
    monkeypatch.setattr(fresh, "time", found)
    return found


def test_a_value_is_made_again_when_it_is_old(clock: Clock) -> None:
    made = iter(range(9))
    values: Fresh[int] = Fresh(for_s=2.0, entries_max=9)
    assert [values.get("a", lambda: next(made)) for _ in range(3)] == [0, 0, 0]
    clock.at += 2.0
    assert values.get("a", lambda: next(made)) == 1


def test_what_takes_long_is_kept_longer(clock: Clock) -> None:
    made: list[float] = []

    def make() -> float:
        made.append(clock.at)
        clock.at += 5.0  # so it is made again five seconds later
        return clock.at

    values: Fresh[float] = Fresh(for_s=2.0, entries_max=9)
    for _ in range(20):
        values.get("a", make)
        clock.at += 1.0
    assert made == [100.0, 110.0, 120.0, 130.0]


def test_many_that_ask_at_once_get_what_one_makes() -> None:
    made: list[int] = []
    begun, go_on = threading.Event(), threading.Event()

    def make() -> int:
        made.append(1)
        begun.set()
        assert go_on.wait(10)
        return len(made)

    values: Fresh[int] = Fresh(for_s=60.0, entries_max=9)
    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(values.get, "a", make) for _ in range(8)]
        assert begun.wait(10)
        go_on.set()
        assert [each.result(10) for each in asked] == [1] * 8
    assert made == [1]


def test_an_error_is_raised_and_not_kept() -> None:
    values: Fresh[int] = Fresh(for_s=60.0, entries_max=9)
    with pytest.raises(ZeroDivisionError):
        values.get("a", lambda: 1 // 0)
    assert values.get("a", lambda: 7) == 7


def test_only_so_many_are_kept() -> None:
    made: list[str] = []

    def get(key: str) -> None:
        values.get(key, lambda: made.append(key) or key)

    values: Fresh[str] = Fresh(for_s=60.0, entries_max=2)
    for key in ("a", "b", "c", "c", "b", "a"):
        get(key)
    assert made == ["a", "b", "c", "a"]
