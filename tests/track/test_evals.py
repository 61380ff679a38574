"""Which evals a run owes, and when they are settled."""

from __future__ import annotations

from dataclasses import replace

from tests.bodies import HELDOUT, declared
from tests.histories import History
from tracks_dagster.track.bodies import EvalOpened, EvalRequirement
from tracks_dagster.track.records import Kind
from tracks_dagster.track.states.evals import (
    evals_settled,
    final_checkpoint,
    next_eval,
    what_evals_wait_for,
)


def trained() -> History:
    """A run with all its steps: checkpoints of steps 20 and 40."""
    history = History().declare().open().place().restore().commit(20).commit(40)
    return history.end("completed", last_step=40)


def due(history: History) -> EvalOpened | None:
    return next_eval(history.state, decided_by="tests", attempts_max=3)


def fail(history: History) -> History:
    ref = final_checkpoint(history.state)
    assert ref is not None
    history.open_eval(ref)
    return history.end_eval(history.state.evals[-1].opened, "evaluator_error")


def test_no_eval_is_due_while_the_run_trains() -> None:
    history = History().declare().open().place().restore().commit(40)
    assert due(history) is None
    assert not evals_settled(history.state)
    assert what_evals_wait_for(history.state, attempts_max=3) == ()


def test_no_eval_is_due_after_a_failure() -> None:
    history = History().declare().open().place().restore().commit(20).end("gpu_oom", last_step=23)
    assert due(history) is None


def test_the_eval_of_the_final_checkpoint_is_due_when_all_steps_are_done() -> None:
    history = trained()
    opened = due(history)
    assert opened is not None
    assert (opened.eval_id, opened.number, opened.checkpoint.step) == ("heldout-loss@40", 1, 40)
    assert (opened.suite_version, opened.snapshot, opened.seed) == ("1", HELDOUT, 7)
    assert "requires" in opened.decision
    assert what_evals_wait_for(history.state, attempts_max=3) == (
        "heldout-loss@40: attempt 1 is due",
    )


def test_an_eval_that_is_open_is_not_opened_again() -> None:
    history = trained()
    history.open_eval(history.state.resumable[-1])
    assert due(history) is None
    assert what_evals_wait_for(history.state, attempts_max=3) == (
        "heldout-loss@40: attempt 1 is under way",
    )


def test_a_completed_eval_settles_the_run() -> None:
    history = trained()
    history.open_eval(history.state.resumable[-1])
    history.end_eval(history.state.evals[-1].opened)
    assert due(history) is None
    assert evals_settled(history.state)


def test_a_failed_eval_is_tried_again_three_times_in_all() -> None:
    history = trained()
    for number in (1, 2, 3):
        opened = due(history)
        assert opened is not None
        assert opened.number == number
        fail(history)
    assert due(history) is None
    assert not evals_settled(history.state)
    (words,) = what_evals_wait_for(history.state, attempts_max=3)
    assert "failed 3 times" in words
    assert "tracks waive r-1 heldout-loss" in words


def test_the_next_attempt_says_why_the_one_before_failed() -> None:
    history = fail(trained())
    opened = due(history)
    assert opened is not None
    ended_seq = history.state.evals[-1].ended_seq
    assert opened.decision.startswith(
        f"Attempt 2 of 3 at this eval: the one before (record {ended_seq})"
    )


def test_a_waiver_settles_what_is_exhausted_and_opens_nothing_more() -> None:
    history = fail(trained()).waive_eval()
    assert due(history) is None
    assert evals_settled(history.state)


def test_an_eval_of_another_checkpoint_snapshot_version_or_seed_does_not_count() -> None:
    history = trained()
    early, final = history.state.resumable
    history.open_eval(early)
    history.end_eval(history.state.evals[-1].opened)
    assert not evals_settled(history.state)
    history.open_eval(final)
    history.end_eval(history.state.evals[-1].opened)
    assert evals_settled(history.state)
    required = history.state.declared.evals[0]
    others = (
        replace(required, suite_version="2"),
        replace(required, seed=8),
        replace(required, snapshot=replace(HELDOUT, snapshot_id="0" * 64)),
    )
    for other in others:
        changed = replace(history.state, declared=declared(evals=(other,)))
        assert not evals_settled(changed), other


def test_a_quarantined_final_checkpoint_makes_the_one_before_due_under_a_new_number() -> None:
    history = fail(trained())
    history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, history.state.resumable[-1])
    opened = due(history)
    assert opened is not None
    assert (opened.eval_id, opened.number) == ("heldout-loss@20", 1)


def test_two_checkpoints_of_one_step_never_share_a_number() -> None:
    history = trained()  # as when a person retried a completed run
    fail(history)
    history.open(resume=history.state.resumable[0]).place().restore().commit(40).end("completed")
    opened = due(history)
    assert opened is not None
    assert opened.checkpoint.attempt_id == 2
    assert (opened.eval_id, opened.number) == ("heldout-loss@40", 2)
    assert "requires" in opened.decision  # the budget is a checkpoint's own


def test_every_suite_is_due_by_itself() -> None:
    second = EvalRequirement(suite="other", suite_version="1", snapshot=HELDOUT, seed=0)
    history = History().declare(evals=(*declared().evals, second)).open().place().restore()
    history.commit(40).end("completed", last_step=40)
    history.open_eval(history.state.resumable[-1])
    opened = due(history)
    assert opened is not None
    assert opened.suite == "other"


def test_a_run_without_requirements_is_settled() -> None:
    assert evals_settled(History().declare(evals=()).state)


def test_no_eval_is_opened_in_a_finished_run() -> None:
    assert due(trained().finish("user")) is None


def test_a_completed_run_without_a_checkpoint_says_so() -> None:
    history = History().declare().open().place().restore().end("completed")
    assert due(history) is None
    assert what_evals_wait_for(history.state, attempts_max=3) == (
        "no committed checkpoint is left to evaluate",
    )
