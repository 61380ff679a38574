"""How far a run goes back when its numbers went wrong: 1, 2, 4 checkpoints before the onset."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.histories import History
from tests.hold_values import lost
from tracks_dagster.ledger.deciding import Wait
from tracks_dagster.retry.decide import decide
from tracks_dagster.retry.decision import Finish, Refuse, Retry
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.track.bodies import ComputeRequest
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.records import Kind
from tracks_dagster.track.states.checkpoints import CheckpointRef, object_prefix

CONFIG = {"steps": 400, "seed": 7, "micro_batch": 4, "accumulation": 6, "lr": 0.08}
SOURCE = CheckpointRef("r-0", 2, 20, object_prefix(AttemptRef("r-0", 2), "launch-2", 20), "5" * 64)


def saved(*steps: int, **declared: Any) -> History:
    """A run in its first attempt that has committed these steps."""
    fields = {"config": CONFIG, "estimated_device_s": 1e9} | declared
    history = History().declare(**fields).open().place().restore()
    for step in steps:
        history.commit(step)
    return history


def ended(history: History, onset: int, reason: str = "nan_loss", **changes: Any) -> History:
    """The open attempt's numbers go wrong at `onset`, which is noticed there by default."""
    fields = {"last_step": onset - 1, "onset_step": onset, "fingerprint": f"{history.at}"}
    return history.end(reason, **fields | changes)


def answer(history: History, **known: Any) -> Retry | Refuse:
    decision = decide(history.state, DEFAULT_POLICY, history.at + timedelta(hours=1), **known)
    assert isinstance(decision, Retry | Refuse), decision
    return decision


def retried(history: History) -> Retry:
    """Append the records that the decision asks for, one at a time, and return the decision."""
    decision = answer(history)
    assert isinstance(decision, Retry), decision
    while decision.quarantine:
        first = decision.quarantine[0]
        history.decide_checkpoint(
            Kind.CHECKPOINT_QUARANTINED, first.ref, is_passed_over=first.is_passed_over
        )
        following = answer(history)
        assert isinstance(following, Retry)
        assert same_plan(following, decision)
        assert following.quarantine == decision.quarantine[1:]
        decision = following
    assert decision.resume == history.state.resumes_from
    history.open(
        config=decision.config,
        compute=decision.compute,
        debit=decision.debit,
        remediation=decision.remediation,
        resume=decision.resume,
    )
    history.place().restore()
    return decision


def same_plan(ours: Retry, theirs: Retry) -> bool:
    """The same in all but what an earlier record of the same plan has done, and the time."""
    rest = {"quarantine": (), "counted_seqs": (), "decision": ""}
    words = [each.decision.partition(" Decided as of")[0] for each in (ours, theirs)]
    return words[0] == words[1] and dataclasses.replace(ours, **rest) == dataclasses.replace(
        theirs, **rest
    )


def quarantined(history: History) -> list[tuple[int, int]]:
    """(attempt, step) of what is quarantined, in the order of the commits."""
    return [(c.ref.attempt_id, c.ref.step) for c in history.state.checkpoints if c.quarantined]


def test_the_first_rollback_changes_nothing_but_where_it_resumes() -> None:
    history = ended(saved(10, 20, 30, 40), onset=33, last_step=45)
    decision = retried(history)
    assert decision.resume is not None
    assert decision.resume.step == 30
    assert quarantined(history) == [(1, 40)]
    assert decision.remediation == ()
    assert decision.config == CONFIG
    assert "exact to the bit" in decision.decision
    assert "went wrong at step 33" in decision.decision


def test_the_second_leaves_the_window_out_and_the_third_halves_the_learning_rate() -> None:
    history = ended(saved(10, 20, 30, 40, 50), onset=55)
    first = retried(history)
    assert (first.resume.step if first.resume else 0) == 50
    second = retried(ended(history, onset=55))
    assert (second.resume.step if second.resume else 0) == 40
    assert second.config == {**CONFIG, "skip_windows": [[41, 55]]}
    assert "went wrong at the same step: the cause is deterministic" in second.decision
    history.commit(50)
    third = retried(ended(history, onset=60))
    # before step 60: 50 of attempt 3, then 40, 30, 20 of attempt 1; the fourth is 20
    assert (third.resume.step if third.resume else 0) == 20
    assert third.config == {**CONFIG, "skip_windows": [[41, 55], [21, 60]], "lr": 0.04}
    assert [(c.key, c.before, c.after) for c in third.remediation] == [
        ("skip_windows", [[41, 55]], [[41, 55], [21, 60]]),
        ("lr", 0.08, 0.04),
    ]
    assert quarantined(history) == [(1, 30), (1, 40), (1, 50), (3, 50)]
    assert isinstance(answer(ended(history, onset=60)), Refuse)  # 3 in 10 000 steps


def test_a_repeat_that_ends_elsewhere_is_distinguished() -> None:
    history = ended(saved(10, 20), onset=25)
    retried(history)
    second = retried(ended(history, onset=28))
    assert "went wrong at another step than the 25" in second.decision


def test_a_config_without_a_learning_rate_only_leaves_the_window_out() -> None:
    history = saved(10, 20, 30, 40, 50, config={"steps": 400, "seed": 7})
    for _ in range(2):
        retried(ended(history, onset=55))
    assert [c.key for c in retried(ended(history, onset=55)).remediation] == ["skip_windows"]


def test_a_nan_and_a_divergence_are_rollbacks_of_one_row() -> None:
    history = ended(saved(10, 20, 30), onset=35)
    retried(history)
    decision = retried(ended(history, onset=35, reason="loss_divergence"))
    assert (decision.resume.step if decision.resume else 0) == 20


def test_a_save_past_the_onset_begins_the_row_again() -> None:
    history = ended(saved(10, 20, 30), onset=35)
    retried(history)
    history.commit(40).commit(50)
    decision = retried(ended(history, onset=52))
    assert (decision.resume.step if decision.resume else 0) == 50
    assert decision.remediation == ()


def test_where_fewer_are_there_it_begins_afresh_and_says_so() -> None:
    history = ended(saved(10), onset=15)
    retried(history)
    decision = retried(ended(history, onset=15))
    assert decision.resume is None
    assert decision.config["skip_windows"] == [[1, 15]]
    assert "Of 2 checkpoints to go back 1 are there: it begins afresh." in decision.decision
    assert history.state.resumes_from is None


def test_a_run_whose_older_ones_retention_took_keeps_the_oldest() -> None:
    """To begin afresh would give up what retention had every right to rely on."""
    history = saved(10, 20, 30)
    first = history.state.checkpoints[0].ref
    history.decide_checkpoint(Kind.CHECKPOINT_SUPERSEDED, first)
    history.decide_checkpoint(Kind.CHECKPOINT_DELETED, first)
    ended(history, onset=35)
    retried(history)
    retried(ended(history, onset=35))
    decision = retried(ended(history, onset=35))
    assert (decision.resume.step if decision.resume else 0) == 20
    assert "others are deleted: it goes back to the oldest that is kept" in decision.decision


def test_a_branch_goes_back_no_further_than_to_its_source() -> None:
    history = saved(30, branched_from=SOURCE)
    retried(ended(history, onset=35))
    decision = retried(ended(history, onset=35))
    assert decision.resume == SOURCE
    assert "r-0@20, where it branched" in decision.decision


def test_a_branch_whose_source_was_withdrawn_keeps_its_oldest() -> None:
    history = saved(30, branched_from=SOURCE)
    retried(ended(history, onset=35))
    ended(history, onset=35)
    decision = answer(history, holds=[lost(SOURCE)])
    assert isinstance(decision, Retry)
    assert decision.resume == history.state.checkpoints[0].ref
    assert decision.quarantine == ()


def test_a_branch_with_nowhere_to_go_back_to_is_refused() -> None:
    history = ended(saved(40, branched_from=SOURCE), onset=35, last_step=45)
    decision = answer(history, holds=[lost(SOURCE)])
    assert isinstance(decision, Refuse)
    assert decision.limit == "remediation"
    assert "and r-0@20 (attempt 2) is not in that run's track" in decision.decision


def test_what_a_rollback_only_passes_over_is_distinguished_from_what_is_tainted() -> None:
    history = saved(10, 20, 30, 40)
    retried(ended(history, 35))
    retried(ended(history.commit(33), 35))
    states = {c.ref.step: c.is_passed_over for c in history.state.checkpoints if c.quarantined}
    assert states == {40: False, 33: True}


def test_silent_corruption_may_be_in_all_that_it_passes_over() -> None:
    history = saved(10, 20, 30).end("silent_corruption", last_step=34)
    assert [q.is_passed_over for q in answer(history).quarantine] == [False]


def test_after_a_rollback_the_run_makes_progress_from_where_it_went_on() -> None:
    history = saved(10, 20, 30, 40)
    retried(ended(history, 45))
    retried(ended(history, 45))  # back to step 30
    for step in range(31, 41):
        history.commit(step).verify().end("node_failure", last_step=step, fingerprint=f"{step}")
        retried(history)


def test_a_run_stopped_after_its_numbers_went_wrong_ends_with_what_was_saved_before() -> None:
    history = ended(saved(10, 20, 30), 25, last_step=34).stop()
    finish = decide(history.state, DEFAULT_POLICY, history.at)
    assert isinstance(finish, Finish)
    assert finish.final is not None
    assert finish.final.step == 20
    assert [q.ref.step for q in finish.quarantine] == [30]


def test_a_pinned_checkpoint_is_quarantined_too() -> None:
    history = saved(10, 20)
    history.decide_checkpoint(
        Kind.CHECKPOINT_PINNED, history.state.checkpoints[1].ref, pin="hold:ann"
    )
    retried(ended(history, onset=15, last_step=25))
    assert quarantined(history) == [(1, 20)]


def test_a_refusal_too_quarantines_what_was_saved_from_the_onset_on() -> None:
    history = saved(10, 20, 30, 40)
    for _ in range(3):
        retried(ended(history, onset=45))
    history.commit(46).commit(47)
    decision = answer(ended(history, onset=46, last_step=48))
    assert isinstance(decision, Refuse)
    assert [q.ref.step for q in decision.quarantine] == [47, 46]


def test_what_the_trainer_did_not_name_is_the_step_after_its_last() -> None:
    history = ended(saved(10, 20), onset=21, onset_step=None)
    decision = retried(history)
    assert "went wrong at step 21" in decision.decision
    assert quarantined(history) == []


def test_an_older_attempts_higher_step_is_not_a_way_back() -> None:
    """Attempt 2 resumed from 10; the 20 of attempt 1 was given up before, and counts for nothing."""
    history = saved(10, 20).end("preempted", last_step=25)
    history.open(resume=history.state.checkpoints[0].ref).place().restore().commit(15)
    retried(ended(history, onset=18))
    decision = retried(ended(history, onset=18))
    assert (decision.resume.step if decision.resume else 0) == 10
    assert quarantined(history) == [(1, 20), (2, 15)]


def test_silent_corruption_goes_two_checkpoints_back_on_another_node() -> None:
    cluster = ComputeRequest(launcher="k8s", ranks=2)
    history = saved(10, 20, 30, compute=cluster)
    decision = retried(history.end("silent_corruption", last_step=35))
    assert (decision.resume.step if decision.resume else 0) == 20
    assert quarantined(history) == [(1, 30)]
    assert decision.compute.excluded_nodes == ("node-1",)
    assert "losses of the steps that it repeats are compared" in decision.decision


@given(
    steps=st.lists(st.integers(1, 60), min_size=0, max_size=8, unique=True).map(sorted),
    onsets=st.lists(st.integers(1, 70), min_size=1, max_size=3),
    again=st.lists(st.booleans(), min_size=3, max_size=3),
)
def test_after_every_rollback_the_run_resumes_from_before_the_onset(
    steps: list[int], onsets: list[int], again: list[bool]
) -> None:
    history = saved(*steps)
    for onset, commits in zip(onsets, again, strict=False):
        begin = history.state.attempts[-1].resumed_step
        if commits and len(history.state.attempts) > 1:
            history.commit(begin + 1)
        ended(history, onset=max(onset, begin + 1), last_step=max(onset, begin + 1) + 3)
        if isinstance(answer(history), Refuse):
            return
        decision = retried(history)  # holds each step of it against the plan
        resumable = [c.ref for c in history.state.checkpoints if c.is_resumable]
        failed = history.state.attempts[-2].ended
        assert failed is not None
        assert failed.onset_step is not None
        assert all(ref.step < failed.onset_step for ref in resumable)
        if decision.resume is not None:
            assert decision.resume.step < failed.onset_step


@pytest.mark.parametrize("extra", ["verified", "deleted"])
def test_what_others_do_between_two_records_does_not_move_the_plan_back(extra: str) -> None:
    history = saved(10, 20, 30, 40)
    retried(ended(history, onset=45))
    ended(history, onset=45)
    planned = answer(history)
    assert isinstance(planned, Retry)
    passed = planned.quarantine[0].ref
    history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, passed)
    if extra == "deleted":
        history.decide_checkpoint(Kind.CHECKPOINT_DELETED, passed)
    else:
        history.note("a person looks")
    following = answer(history)
    assert isinstance(following, Retry)
    assert following.resume == planned.resume


def test_what_a_read_found_corrupt_is_not_asked_to_be_read_again() -> None:
    """Else the run would wait for that reading, tick after tick."""
    history = saved(10)
    for _ in range(3):
        retried(ended(history, onset=20))
    history.commit(25)
    ended(history, onset=30)
    waits = decide(history.state, DEFAULT_POLICY, history.at)
    assert isinstance(waits, Wait)
    assert waits.verify == history.state.checkpoints[-1].ref
    history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, waits.verify)
    assert isinstance(answer(history), Refuse)
