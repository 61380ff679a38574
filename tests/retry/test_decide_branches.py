"""What follows on the end of a branch's attempt: from where it resumes, and what a person let pass."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tests.histories import History
from tests.hold_values import lost
from tracks_dagster.ledger.deciding import Wait
from tracks_dagster.retry.decide import decide
from tracks_dagster.retry.decision import Refuse, Retry
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.records import Kind
from tracks_dagster.track.states.checkpoints import CheckpointRef, object_prefix

SOURCE = CheckpointRef("r-0", 2, 20, object_prefix(AttemptRef("r-0", 2), "launch-2", 20), "5" * 64)


def branch() -> History:
    """Return a branch whose first attempt has begun."""
    return History("b-1").declare(branched_from=SOURCE).open().place().restore()


def decided(history: History, **known: Any) -> Retry | Refuse:
    """Return the decision after a preemption, once its backoff is over."""
    history.end("preempted", last_step=23)
    decision = decide(history.state, DEFAULT_POLICY, history.at + timedelta(hours=1), **known)
    assert isinstance(decision, Retry | Refuse)
    return decision


def test_before_its_first_commit_a_branch_resumes_from_its_source_again() -> None:
    history = branch()
    assert history.state.attempts[0].opened.resume == SOURCE
    decision = decided(history)
    assert isinstance(decision, Retry)
    assert decision.resume == SOURCE
    assert "resumes from r-0@20, which the run branched from" in decision.decision


def test_after_its_first_commit_it_resumes_from_its_own() -> None:
    history = branch().commit(22)
    decision = decided(history)
    assert isinstance(decision, Retry)
    assert decision.resume == history.state.checkpoints[0].ref
    assert "step 22 of attempt 1" in decision.decision


def test_when_its_own_are_all_quarantined_it_goes_back_to_its_source() -> None:
    history = branch().commit(22)
    history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, history.state.checkpoints[0].ref)
    assert history.state.resumes_from == SOURCE


def test_a_run_that_is_not_a_branch_begins_afresh() -> None:
    assert History().declare().state.resumes_from is None


def test_a_branch_whose_source_was_withdrawn_is_refused_and_not_begun_at_step_0() -> None:
    decision = decided(branch(), holds=[lost(SOURCE)])
    assert isinstance(decision, Refuse)
    assert decision.limit == "branch"
    assert "and r-0@20 (attempt 2) is not in that run's track" in decision.decision


def test_a_run_that_nobody_may_retry_waits_whatever_became_of_its_source() -> None:
    history = branch().stop("drain").end("user_cancelled")
    decision = decide(history.state, DEFAULT_POLICY, history.at, [lost(SOURCE)])
    assert isinstance(decision, Wait)


def test_a_stopped_branch_without_a_commit_has_no_final_checkpoint() -> None:
    history = branch().end("preempted").stop()
    decision = decide(history.state, DEFAULT_POLICY, history.at)
    assert getattr(decision, "final", SOURCE) is None


def test_what_a_person_let_pass_holds_for_the_retries_from_the_same_checkpoint() -> None:
    history = History().declare().open().place().restore().commit(20).end("dependency_mismatch")
    history.open(cause="manual_retry", allows_environment_change=True)
    decision = decided(history)
    assert isinstance(decision, Retry)
    assert decision.allows_environment_change


def test_it_does_not_hold_for_a_later_checkpoint() -> None:
    history = History().declare().open().place().restore().commit(20).end("dependency_mismatch")
    history.open(cause="manual_retry", allows_environment_change=True).place().restore().commit(22)
    decision = decided(history)
    assert isinstance(decision, Retry)
    assert not decision.allows_environment_change


def test_a_refused_environment_is_not_retried_by_itself() -> None:
    history = History().declare().open().place().restore().commit(20).end("preempted").open()
    history.end("dependency_mismatch", first_line_ran=False, root_message="torch 2.12.0 → 2.13.0")
    decision = decide(history.state, DEFAULT_POLICY, history.at + timedelta(hours=1))
    assert isinstance(decision, Refuse)
    assert "torch 2.12.0 → 2.13.0" in decision.what_to_do
