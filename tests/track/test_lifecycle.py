"""How a run stands, at every turn of its life."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.histories import History
from tests.random_histories import random_run
from tracks_dagster.track.states.lifecycle import RunLifecycle, run_status


def trained() -> History:
    """A run whose attempt 1 trains, with a commit of step 20."""
    return History().declare().open().supervise().place().restore().commit(20)


def check(history: History, state: str, words: str) -> None:
    status = run_status(history.state)
    assert status.state == state
    assert words in status.why


def test_a_run_is_running_from_its_declaration_on() -> None:
    check(History().declare(), "running", "about to be opened")


def test_an_open_attempt_says_how_far_it_has_come() -> None:
    history = History().declare().open()
    check(history, "running", "waits for a supervisor")
    check(history.supervise(), "running", "starting its gang")
    check(history.place(), "running", "restoring")
    check(history.restore(), "running", "training from step 0 on")


def test_an_open_attempt_says_who_asked_for_its_end_and_when() -> None:
    history = trained().stop("drain")
    at = history.state.stops[-1].at
    words = f"training from step 0 on; ann asked to drain it at {at:%Y-%m-%dT%H:%M:%S}Z (enough), "
    check(history, "running", f"{words}not obeyed yet.")
    check(history.end("user_cancelled"), "waiting", "`tracks retry ")


def test_a_decision_that_is_due_counts_as_running() -> None:
    check(trained().end("preempted", last_step=23), "running", "decision about a retry is due")


def test_a_complete_training_runs_until_evals_and_promotion_are_settled() -> None:
    history = trained().end("completed", last_step=20)
    check(history, "running", "evals are due: heldout-loss.")
    history.open_eval(history.state.checkpoints[-1].ref)
    history.end_eval(history.state.evals[-1].opened)
    check(history, "running", "promotion and the run's finish are due.")


@pytest.mark.parametrize("stop_cause", ["step_budget", "converged", "early_stop"])
def test_a_run_that_reached_its_end_has_succeeded(stop_cause: str) -> None:
    check(trained().end(last_step=40).finish(stop_cause), "succeeded", "All steps are done.")


@pytest.mark.parametrize("stop_cause", ["user", "cost_stop", "a cause of a newer version"])
def test_a_run_that_was_ended_from_outside_is_cancelled(stop_cause: str) -> None:
    check(trained().end(last_step=30).finish(stop_cause), "cancelled", "")


def test_a_refusal_stands_until_a_person_opens_another_attempt() -> None:
    history = trained().end("code_error", last_step=23).refuse()
    check(history, "refused", "The budget is used up. Look at the traceback")
    check(history.open(cause="manual_retry"), "running", "Attempt 2 is opened")
    check(history.end("code_error"), "running", "decision about a retry is due")


def test_a_run_whose_attempt_a_person_ended_waits_and_says_how_to_go_on() -> None:
    check(trained().end("user_cancelled"), "waiting", '`tracks retry r-1 --why "…"`')
    check(trained().stop("drain").end("user_cancelled"), "waiting", "tracks retry")


def test_a_stop_that_was_asked_for_is_about_to_be_recorded() -> None:
    check(trained().stop("stop").end("user_cancelled"), "running", "ann asked to stop (enough)")


def test_a_stop_ends_a_refused_run_too() -> None:
    check(trained().end("code_error").refuse().stop("stop"), "running", "about to be finished")


def test_a_drain_of_an_earlier_attempt_does_not_concern_the_newest() -> None:
    history = trained().stop("drain").end("preempted")
    check(history, "waiting", "as a person asked")
    check(history.open().end("preempted"), "running", "decision about a retry is due")


def test_of_a_drained_run_that_failed_by_itself_only_the_waiting_was_asked_for() -> None:
    history = trained().end("code_error", last_step=23).stop("drain")
    check(history, "waiting", "Attempt 1 ended as code_error; the run waits, as a person asked;")


@given(seed=st.integers(0, 2**32))
def test_every_legal_history_has_a_state_and_words_for_it(seed: int) -> None:
    status = run_status(random_run(Random(seed)).state)
    assert status.state in set(RunLifecycle)
    assert status.why.endswith(".")


def test_a_run_without_a_checkpoint_to_evaluate_waits_for_a_person_until_its_evals_are_let_go() -> (
    None
):
    history = History().declare().open().supervise().place().restore().end(last_step=40)
    words = "evaluate; let it go: `tracks waive r-1 heldout-loss --why"
    check(history, "waiting", words)
    check(history.waive_eval(), "running", "promotion and the run's finish are due")
