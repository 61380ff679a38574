"""Where a rank's seconds go: every second counts once."""

from __future__ import annotations

from contextlib import suppress

from tracks_dagster.track.bodies import TimeSpent
from tracks_dagster.training.step_log import TimeBook


class Hand:
    """A clock that a test moves by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> int:
        return round(self.now * 1e9)


def test_steps_and_their_data_are_distinguished_and_summed() -> None:
    clock = Hand()
    book = TimeBook(clock)
    for data_s, step_s in ((2.0, 10.0), (1.0, 20.0)):
        book.data_asked()
        clock.now += data_s
        assert book.data_came() == data_s
        clock.now += step_s
        assert book.stepped() == step_s
    assert book.spent == TimeSpent(steps_s=30.0, data_s=3.0)


def test_what_the_script_does_between_two_steps_is_nobodys() -> None:
    clock = Hand()
    book = TimeBook(clock)
    book.data_asked()
    book.data_came()
    book.stepped()
    clock.now += 60.0
    book.data_asked()
    assert book.spent == TimeSpent()


def test_a_save_or_an_evaluation_inside_a_step_is_none_of_the_steps_time() -> None:
    clock = Hand()
    book = TimeBook(clock)
    book.data_asked()
    book.data_came()
    clock.now += 1.0
    with book.saving():
        clock.now += 5.0
    with book.evaluating():
        clock.now += 7.0
    clock.now += 1.0
    assert book.stepped() == 2.0
    assert book.spent == TimeSpent(steps_s=2.0, saving_s=5.0, eval_s=7.0)


def test_a_wait_inside_another_counts_once_for_the_outer_one() -> None:
    clock = Hand()
    book = TimeBook(clock)
    with book.evaluating():
        clock.now += 3.0
        with book.saving():
            clock.now += 4.0
    assert book.spent == TimeSpent(eval_s=7.0)


def test_after_an_evaluation_that_failed_every_second_still_counts_once() -> None:
    clock = Hand()
    book = TimeBook(clock)
    book.data_asked()
    book.data_came()
    with suppress(ValueError), book.evaluating():
        clock.now += 7.0
        raise ValueError("of the script, which trains on")
    clock.now += 1.0
    with book.saving():
        clock.now += 5.0
    assert book.stepped() == 1.0
    assert book.spent == TimeSpent(steps_s=1.0, saving_s=5.0, eval_s=7.0)


def test_keeping_the_book_reads_the_clock_three_times_a_step() -> None:
    clock = Hand()
    readings = 0

    def counting() -> int:
        nonlocal readings
        readings += 1
        return clock()

    book = TimeBook(counting)
    for _ in range(100):
        book.data_asked()
        book.data_came()
        book.stepped()
    assert readings == 300
