"""A run of many attempts stays a short list; nothing of it is hidden without a word."""

from __future__ import annotations

from tests.fakes import FakeObjectStore
from tests.stories import Story
from tracks_dagster.review.effects.explain.stretches import SEVERAL, STRETCHES_MAX, stretches
from tracks_dagster.review.effects.receipts import receipts_of
from tracks_dagster.review.explain.sections import history_lines

SHORT = STRETCHES_MAX


def run(store: FakeObjectStore, reasons: list[str]) -> Story:
    """A run whose attempts end so, each five steps further than the one before."""
    story = Story(store)
    for number, reason in enumerate(reasons, start=1):
        story.attempt(reason, last_step=5 * number, commits=(5 * number,))
    return story


def bounds(store: FakeObjectStore, reasons: list[str]) -> list[tuple[int, int, str | None]]:
    receipts = receipts_of(store, run(store, reasons).history.state)
    return [(each.first, each.last, each.reason) for each in stretches(receipts)]


def test_a_few_attempts_stand_each_alone(store: FakeObjectStore) -> None:
    assert bounds(store, ["preempted", "preempted", "gpu_oom"]) == [
        (1, 1, "preempted"),
        (2, 2, "preempted"),
        (3, 3, "gpu_oom"),
    ]


def test_of_many_those_that_ended_alike_stand_together(store: FakeObjectStore) -> None:
    reasons = ["preempted"] * SHORT + ["gpu_oom"] + ["preempted"] * 2
    assert bounds(store, reasons) == [
        (1, SHORT, "preempted"),
        (SHORT + 1, SHORT + 1, "gpu_oom"),
        (SHORT + 2, SHORT + 3, "preempted"),
    ]


def test_where_even_that_is_too_much_the_middle_is_one_and_no_attempt_is_left_out(
    store: FakeObjectStore,
) -> None:
    found = bounds(store, ["preempted", "hang"] * SHORT)
    assert len(found) == STRETCHES_MAX
    assert [each[2] for each in found].count(SEVERAL) == 1
    covered = [n for first, last, _ in found for n in range(first, last + 1)]
    assert covered == list(range(1, 2 * SHORT + 1))


def test_kept_and_lost_steps_of_a_stretch_are_those_of_its_attempts(store: FakeObjectStore) -> None:
    receipts = receipts_of(store, run(store, ["preempted"] * (SHORT + 1)).history.state)
    (only,) = stretches(receipts)
    assert (only.kept_steps, only.lost_steps) == (5 * (SHORT + 1), 0)
    assert (only.from_step, only.to_step, only.count) == (0, 5 * (SHORT + 1), SHORT + 1)


def test_a_retry_that_failed_alike_with_nothing_kept_since_is_reported(
    store: FakeObjectStore,
) -> None:
    story = Story(store)
    story.attempt("preempted", last_step=10, commits=(10,))
    for _ in range(2):
        story.attempt("code_error", last_step=12, commits=())
    story.attempt("code_error", last_step=20, commits=(20,))
    story.attempt("code_error", last_step=22, commits=())
    found = stretches(receipts_of(store, story.history.state))
    assert [each.repeats for each in found] == [None, None, 2, None, 4]


def test_the_newest_attempt_kept_no_more_than_it_committed(store: FakeObjectStore) -> None:
    story = Story(store)
    story.attempt("code_error", last_step=12, commits=(10,))
    story.attempt("code_error", last_step=15, commits=())
    first, newest = stretches(receipts_of(store, story.history.state))
    assert newest.repeats == 1
    lines = list(history_lines((first, newest)))
    assert "a02 code_error: steps 10 to 15, 0 kept, 5 lost; it failed just as a01" in lines[1]


def test_many_dead_retries_in_one_line_say_that_they_failed_as_the_one_before(
    store: FakeObjectStore,
) -> None:
    story = Story(store)
    story.attempt("preempted", last_step=12, commits=(10,))
    for _ in range(STRETCHES_MAX + 6):
        story.attempt("native_crash", last_step=13, commits=())
    [_, many] = stretches(receipts_of(store, story.history.state))
    assert (many.count, many.repeat_count) == (STRETCHES_MAX + 6, STRETCHES_MAX + 5)
    [_, lines] = history_lines(stretches(receipts_of(store, story.history.state)))
    assert "29 of them failed just as an attempt before, with nothing kept in between" in lines


def test_a_finished_run_kept_what_it_committed(store: FakeObjectStore) -> None:
    story = Story(store)
    story.attempt("user_cancelled", last_step=12, commits=(10,))
    story.history.finish("user")
    lines = history_lines(stretches(receipts_of(store, story.history.state)))
    assert list(lines) == ["a01 user_cancelled: steps 0 to 12, 10 kept, 2 lost"]
