"""Kept and lost steps, by worked examples and by their invariants."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.histories import History
from tests.random_histories import random_run
from tracks_dagster.track.records import Kind
from tracks_dagster.track.states.accounting import StepSpan, kept_and_lost, step_accounts

# Each attempt is (resume, last), the expectation (end, kept, lost).
EXAMPLES = {
    "one attempt keeps all that it ran": [((0, 40), (40, 40, 0))],
    "an attempt without a step keeps and loses nothing": [((0, 0), (0, 0, 0))],
    "three steps past the commit that the next attempt restored are lost": [
        ((0, 23), (20, 20, 3)),  # end = min(23, 20); lost = 23 - 0 - 20
        ((20, 40), (40, 20, 0)),
    ],
    "a save on SIGTERM loses nothing": [((0, 23), (23, 23, 0)), ((23, 40), (40, 17, 0))],
    "an attempt that begins afresh keeps nothing of those before it": [
        ((0, 9), (0, 0, 9)),
        ((0, 40), (40, 40, 0)),
    ],
    "a retry that made no step changes nothing": [
        ((0, 23), (20, 20, 3)),
        ((20, 20), (20, 0, 0)),
        ((20, 40), (40, 20, 0)),
    ],
    "a later rollback takes back what an earlier attempt had kept": [
        ((0, 23), (10, 10, 13)),  # min(23, 20, 10)
        ((20, 35), (10, 0, 15)),  # min(35, 10) lies below its resume
        ((10, 40), (40, 30, 0)),
    ],
    "only the deepest rollback counts for the attempts before it": [
        ((0, 30), (10, 10, 20)),
        ((30, 50), (10, 0, 20)),
        ((10, 20), (20, 10, 0)),  # min(20, 20)
        ((20, 60), (60, 40, 0)),
    ],
}


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES.keys())
def test_steps_divide_as_the_worked_examples_say(
    example: list[tuple[tuple[int, int], tuple[int, int, int]]],
) -> None:
    spans = [
        StepSpan(attempt_id=number, resume=resume, last=last)
        for number, ((resume, last), _) in enumerate(example, start=1)
    ]
    accounts = step_accounts(spans)
    assert [(a.end, a.kept, a.lost) for a in accounts] == [expected for _, expected in example]
    assert [a.attempt_id for a in accounts] == list(range(1, len(example) + 1))


@given(seed=st.integers(0, 2**32))
def test_every_step_that_was_run_is_either_kept_or_lost(seed: int) -> None:
    accounts = kept_and_lost(random_run(Random(seed)).state)
    for account in accounts:
        assert account.kept >= 0
        assert account.lost >= 0
        assert account.kept + account.lost == account.last - account.resume


@given(seed=st.integers(0, 2**32))
def test_no_step_is_kept_twice(seed: int) -> None:
    kept = [
        step
        for account in kept_and_lost(random_run(Random(seed)).state)
        for step in range(account.resume + 1, account.resume + account.kept + 1)
    ]
    assert len(kept) == len(set(kept))


def test_an_open_attempt_counts_to_its_newest_commit_unless_the_caller_knows_more() -> None:
    history = History().declare().open().place().restore().commit(20)
    assert [a.last for a in kept_and_lost(history.state)] == [20]
    assert [a.last for a in kept_and_lost(history.state, {1: 27})] == [27]
    assert [a.last for a in kept_and_lost(history.state, {1: 13})] == [20]


def test_an_open_attempt_without_a_commit_counts_to_what_it_restored() -> None:
    history = History().declare().open().place().restore().commit(20).end("preempted", last_step=23)
    history.open()
    [first, second] = kept_and_lost(history.state)
    assert (first.kept, first.lost) == (20, 3)
    assert (second.resume, second.last, second.kept, second.lost) == (20, 20, 0, 0)


def test_a_commit_proves_its_step_when_the_journal_was_lost() -> None:
    history = History().declare().open().place().restore().commit(20).end("unknown", last_step=None)
    [account] = kept_and_lost(history.state)
    assert (account.last, account.kept, account.lost) == (20, 20, 0)


def test_a_fallback_counts_from_the_step_that_was_really_restored() -> None:
    history = History().declare().open().place().restore().commit(10).commit(20)
    older = history.state.checkpoints[0].ref
    history.end("preempted", last_step=25).open().place()
    history.restore(older, fallback_why="step 20 is corrupt").commit(40)
    history.end("completed", last_step=40)
    [first, second] = kept_and_lost(history.state)
    assert (first.kept, first.lost) == (10, 15)
    assert (second.kept, second.lost) == (30, 0)


def test_what_no_checkpoint_of_the_newest_attempt_holds_is_lost_once_it_has_ended() -> None:
    history = History().declare().open().place().restore().commit(20)
    assert [(a.kept, a.lost) for a in kept_and_lost(history.state, {1: 23})] == [(23, 0)]
    history.end("code_error", last_step=23)
    assert [(a.kept, a.lost) for a in kept_and_lost(history.state)] == [(20, 3)]
    history.refuse()
    assert [(a.kept, a.lost) for a in kept_and_lost(history.state)] == [(20, 3)]
    history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, history.state.checkpoints[0].ref)
    assert [(a.kept, a.lost) for a in kept_and_lost(history.state)] == [(0, 23)]


def test_the_newest_of_many_dead_retries_kept_nothing_either() -> None:
    history = History().declare().open().place().restore().end("native_crash", last_step=3)
    for _ in range(50):
        history.open().place().restore().end("native_crash", last_step=3)
    accounts = kept_and_lost(history.state)
    assert {(a.kept, a.lost) for a in accounts} == {(0, 3)}
