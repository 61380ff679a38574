"""A loop over a generator tells, when it is closed, whether the script meant to leave it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from itertools import islice

import pytest

from tracks_dagster.training.leaving import left_by_exception

Steps = Callable[[], Iterator[int]]


class Loop:
    """Steps whose loop is watched. left: how, None as long as it lasts."""

    def __init__(self) -> None:
        self.left: bool | None = None

    def steps(self) -> Iterator[int]:
        yield from self._inner()

    def passed_on(self) -> Iterator[int]:
        for step in self.steps():  # noqa: UP028 - as a script's own generator does
            yield step

    def _inner(self) -> Iterator[int]:
        for step in range(1, 9):
            try:
                yield step
            except GeneratorExit:
                self.left = left_by_exception()
                raise


def breaks(steps: Steps) -> None:
    for step in steps():
        if step == 3:
            break


def returns(steps: Steps) -> int:
    for step in steps():
        for part in range(3):
            if step == 3 and part == 1:
                return step + part
    return 0


def breaks_inside(steps: Steps) -> None:
    for step in steps():
        with nullcontext():
            try:
                if step == 3:
                    break
            finally:
                step += 1


def breaks_after_an_error(steps: Steps) -> None:
    for step in steps():
        try:
            1 / (step - 3)
        except ZeroDivisionError:
            break


def takes_three(steps: Steps) -> None:
    for _ in islice(steps(), 3):
        pass


def zips(steps: Steps) -> None:
    for _ in zip(steps(), "abc", strict=False):
        pass


def drops_a_name(steps: Steps) -> None:
    held = steps()
    for step in held:
        if step == 3:
            break
    del held


def raises(steps: Steps) -> None:
    with suppress(ValueError):
        for _ in steps():
            raise ValueError


def exits(steps: Steps) -> None:
    with suppress(SystemExit):
        for _ in steps():
            sys.exit(0)


def exits_deep_inside(steps: Steps) -> None:
    try:
        for _ in steps():
            (lambda: sys.exit())()
    except SystemExit:
        return


def misses_a_key(steps: Steps) -> None:
    with suppress(KeyError):
        for step in steps():
            {}[step]


@pytest.mark.parametrize("passes_on", [False, True])
@pytest.mark.parametrize(
    ("script", "by_exception"),
    [
        (breaks, False),
        (returns, False),
        (breaks_inside, False),
        (breaks_after_an_error, False),
        (takes_three, False),
        (zips, False),
        (drops_a_name, False),
        (raises, True),
        (exits, True),
        (exits_deep_inside, True),
        (misses_a_key, True),
    ],
)
def test_a_loop_shows_whether_the_script_meant_to_leave_it(
    script: Callable[[Steps], object], by_exception: bool, passes_on: bool
) -> None:
    loop = Loop()
    script(loop.passed_on if passes_on else loop.steps)
    assert loop.left is by_exception


def test_a_loop_that_came_to_its_end_was_not_left() -> None:
    loop = Loop()
    assert list(loop.steps()) == list(range(1, 9))
    assert loop.left is None
