"""How often a run is retried: numbers in windows, refunds, limits; the arithmetic on the row."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from tests.histories import History
from tests.retry.test_decide import answer, begun, failed, retried, retry_of
from tracks_dagster.ledger.deciding import Wait
from tracks_dagster.retry.decide import decide
from tracks_dagster.retry.decision import Refuse, Retry
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.track.bodies import Program
from tracks_dagster.track.records import Kind

HOUR = 3600.0
DAY = 24 * HOUR


def retries_of(reason: str, *, gap_s: float = 0.0, **changes: Any) -> int:
    """Return how many retries an unbroken row of such ends gets, each with its own fingerprint."""
    history = begun(estimated_device_s=1e9)
    for count in range(40):
        failed(history, reason, fingerprint=f"{count}", **changes)
        history.at += timedelta(seconds=gap_s)
        if not isinstance(answer(history), Retry):
            return count
        retried(history)
    return 40


@pytest.mark.parametrize(
    ("reason", "gap_s", "retries"),
    [
        ("unknown", 0, 2),
        ("native_crash", 0, 2),
        ("rank_lost_secondary", 0, 2),
        ("node_failure", 0, 5),
        ("network_fabric", 0, 5),
        ("hang", 0, 3),
        ("walltime_timeout", 0, 3),
        ("walltime_timeout", 30 * DAY, 3),  # without a window nothing is ever forgotten
        ("silent_corruption", 0, 1),
        ("bad_input_data", 0, 1),
        ("code_error", 0, 1),
        ("checkpoint_corrupt", 0, 0),
        ("disk_full", 0, 2),
        ("unknown", 11 * HOUR, 2),  # debits at 11 and 22 h, both in the 24 h before 33 h
        ("unknown", 13 * HOUR, 40),  # at 39 h only the debit at 26 h is younger than 24 h
        ("node_failure", 33 * HOUR, 5),  # debits at 33 to 165 h, all in the 168 h before 198 h
        ("node_failure", 35 * HOUR, 40),  # at 210 h that at 35 h is 175 h old
        ("preempted", 0, 40),
        ("node_drained", 0, 40),
        ("orchestrator_lost", 0, 10),
    ],
)
def test_each_reason_has_its_number_of_retries_in_its_window(
    reason: str, gap_s: float, retries: int
) -> None:
    assert retries_of(reason, gap_s=gap_s) == retries


@pytest.mark.parametrize("reason", ["preempted", "node_drained"])
@pytest.mark.parametrize(
    ("rule", "retries"),
    [
        *(("condition", 40), ("slurm_state", 40), ("stop_requested", 40)),
        *(("symptom/preemption", 3), ("scheduler_line", 3), ("scheduler_words", 3)),
        ("user_rule/lustre", 3),
    ],
)
def test_only_what_a_control_plane_recorded_is_retried_without_a_limit(
    reason: str, rule: str, retries: int
) -> None:
    assert retries_of(reason, rule=rule) == retries


@pytest.mark.parametrize("reason", ["preempted", "orchestrator_lost"])
def test_one_and_the_same_failure_without_progress_ends_in_a_question_to_a_person(
    reason: str,
) -> None:
    history = begun(estimated_device_s=1e9)
    while isinstance(answer(failed(history, reason, rule="symptom", fingerprint="same")), Retry):
        retried(history)
    refusal = answer(history)
    assert isinstance(refusal, Refuse)
    assert len(history.state.attempts) == 4  # 3 retries
    opened = [attempt.opened_seq for attempt in history.state.attempts[1:]]
    assert set(opened) <= set(refusal.counted_seqs)
    assert all(str(seq) in refusal.decision for seq in opened)


def test_progress_gives_the_debits_of_preemptions_known_by_words_back() -> None:
    history = begun(estimated_device_s=1e9)
    for step in range(10, 120, 10):
        history.commit(step).verify()
        decision = answer(failed(history, "preempted", rule="symptom", last_step=step))
        assert isinstance(decision, Retry)
        retried(history)


@pytest.mark.parametrize(
    "reason", ["code_error", "config_error", "dependency_mismatch", "permission_denied"]
)
def test_what_fails_before_its_first_step_is_refused_at_once(reason: str) -> None:
    assert retries_of(reason, last_step=None) == 0
    assert retries_of(reason, last_step=None, first_line_ran=False) == 0
    assert retries_of(reason, last_step=3) == 1


def test_a_code_error_is_refused_with_its_message_and_what_to_change() -> None:
    history = failed(begun(), "code_error", last_step=None, root_message="ValueError: 3 is not 4")
    refusal = answer(history)
    assert isinstance(refusal, Refuse)
    assert refusal.limit == "reason"
    assert "before the first step" in refusal.decision
    assert "ValueError: 3 is not 4. Correct the training code." in refusal.what_to_do
    assert "tracks retry r-1" in refusal.what_to_do
    assert refusal.counted_seqs == (history.state.head.seq,)


def test_a_script_of_ones_own_is_given_again() -> None:
    history = failed(begun(trainer="runs/r-1/trainer/a.py"), "code_error", last_step=None)
    refusal = answer(history)
    assert isinstance(refusal, Refuse)
    assert (
        'Then `tracks retry r-1 --why "…" --trainer FILE.py` resumes the run.' in refusal.what_to_do
    )


def test_a_file_that_git_ignores_is_missing_in_the_copy_that_an_attempt_starts_in() -> None:
    program = Program(entry=("train.py",), config_name=None, takes_any_key=False)
    missing = {"rule": "known_cause/missing_file", "last_step": None}
    refusal = answer(failed(begun(program=program), "config_error", **missing))
    assert isinstance(refusal, Refuse)
    assert "without what git ignores" in refusal.what_to_do
    assert 'Then `tracks retry r-1 --why "…" --code` resumes the run.' in refusal.what_to_do


# --- refunds ---------------------------------------------------------------------------------------


def spent_twice() -> History:
    """Return a run with both debits for `unknown` spent, in its third attempt; best step 20."""
    history = begun().commit(20)
    for count in range(2):
        retried(failed(history, "unknown", fingerprint=f"{count}"))
    return history


def test_a_checkpoint_beyond_all_before_it_gives_debits_back() -> None:
    history = failed(spent_twice().commit(30).verify(), "unknown", fingerprint="c")
    assert isinstance(answer(history), Retry)  # 2 spent − 2 refunded = 0 of 2


def test_a_checkpoint_that_nobody_has_read_gives_nothing_back_but_is_asked_for() -> None:
    history = failed(spent_twice().commit(25).commit(30), "unknown", fingerprint="c")
    waits = answer(history)
    assert isinstance(waits, Wait)
    assert waits.verify == history.state.checkpoints[-1].ref
    assert "2 of 2 retries" in waits.why
    assert "step 30" in waits.why
    assert isinstance(answer(history.verify()), Retry)


def test_a_checkpoint_that_is_read_and_found_corrupt_makes_way_for_the_one_before_it() -> None:
    history = failed(spent_twice().commit(25).commit(30), "unknown", fingerprint="c")
    history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, history.state.checkpoints[-1].ref)
    waits = answer(history)
    assert isinstance(waits, Wait)
    assert waits.verify is not None
    assert waits.verify.step == 25
    history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, waits.verify)
    assert isinstance(answer(history), Refuse)


def test_nothing_is_read_where_it_could_not_change_the_answer() -> None:
    history = failed(spent_twice().commit(15), "unknown", fingerprint="c")
    assert isinstance(
        answer(history), Refuse
    )  # step 15 is not progress beyond 20, whatever it holds


def test_the_restore_of_the_next_attempt_proves_the_progress_of_the_one_before() -> None:
    """Nobody reads anything but the gangs: a run that gets on is never held up."""
    history = begun()
    for count in range(12):
        failed(history.commit(10 + count), "unknown", fingerprint="same")
        retried(history)  # asserts that there is one


@pytest.mark.parametrize("step", [10, 20])
def test_a_checkpoint_that_is_not_further_gives_nothing_back(step: int) -> None:
    history = failed(spent_twice().commit(step).verify(), "unknown", fingerprint="c")
    assert isinstance(answer(history), Refuse)


def test_a_quarantined_checkpoint_is_not_progress() -> None:
    history = spent_twice().commit(30).verify()
    history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, history.state.checkpoints[-1].ref)
    assert isinstance(answer(failed(history, "unknown", fingerprint="c")), Refuse)


def test_progress_before_a_debit_does_not_pay_for_it() -> None:
    history = spent_twice()  # its commit of step 20 stands before both debits
    assert isinstance(answer(failed(history, "unknown", fingerprint="c")), Refuse)


def test_a_full_disk_gets_half_of_a_debit_back() -> None:
    history = begun()
    for step in (10, 20, 30):
        retried(failed(history, "disk_full", fingerprint=f"{step}")).commit(step).verify()
    # 3 debits, each half refunded: 1.5 of 2 are spent, and the fourth needs a whole one
    assert isinstance(answer(failed(history, "disk_full", fingerprint="d")), Refuse)


def test_numerics_are_refunded_only_beyond_the_onset() -> None:
    history = begun()
    for count in range(3):
        retried(failed(history, "nan_loss", last_step=25, fingerprint=f"{count}"))
    before = failed(history.commit(20).verify(), "nan_loss", last_step=25, fingerprint="x")
    assert isinstance(answer(before), Refuse)  # 20 is progress, but not past the NaN of step 25


def test_numerics_past_the_onset_are_refunded() -> None:
    history = begun()
    for count in range(3):
        retried(failed(history, "nan_loss", last_step=25, fingerprint=f"{count}"))
    past = failed(history.commit(30).verify(), "nan_loss", last_step=31, fingerprint="x")
    assert isinstance(answer(past), Retry)


# --- the three limits ------------------------------------------------------------------------------


def test_the_same_failure_is_not_paid_for_more_than_three_times() -> None:
    history = begun()
    for _ in range(3):
        retried(failed(history, "node_failure", fingerprint="same"))
    refusal = answer(failed(history, "node_failure", fingerprint="same"))
    assert isinstance(refusal, Refuse)
    assert refusal.limit == "fingerprint"  # 3 of 5 by reason, 3 of 3 by fingerprint
    opened = [a.opened_seq for a in history.state.attempts[1:]]
    assert set(opened) < set(refusal.counted_seqs)


def test_an_exit_that_is_just_like_the_one_before_is_not_retried_again() -> None:
    first = {"root_message": "exit code 3 done", "last_step": 12, "fingerprint": "on node 1"}
    history = retried(failed(begun(), "unknown", **first))
    again = {**first, "root_message": "exit code 3 done, too", "fingerprint": "on node 2"}
    refusal = answer(failed(history, "unknown", **again))
    assert isinstance(refusal, Refuse)
    assert refusal.limit == "fingerprint"
    assert "attempt 1 left with the same exit code after the same step" in refusal.decision


@pytest.mark.parametrize(
    "again",
    [
        {"root_message": "exit code 4 done", "last_step": 12},
        {"root_message": "exit code 3 done", "last_step": 13},
        {"root_message": "SIGKILL done", "last_step": 12},
    ],
)
def test_an_exit_that_differs_from_the_one_before_is_retried(again: dict[str, Any]) -> None:
    history = retried(failed(begun(), "unknown", root_message="exit code 3 done", last_step=12))
    assert isinstance(answer(failed(history, "unknown", **again)), Retry)


def test_an_exit_after_a_new_commit_is_retried() -> None:
    history = retried(failed(begun(), "unknown", root_message="exit code 3 x", last_step=12))
    history.commit(12).verify()
    retry = answer(failed(history, "unknown", root_message="exit code 3 x", last_step=12))
    assert isinstance(retry, Retry)


def test_progress_forgives_the_same_failure() -> None:
    history = begun()
    for _ in range(3):
        retried(failed(history, "node_failure", fingerprint="same"))
    failed(history.commit(10).verify(), "node_failure", fingerprint="same")
    assert isinstance(answer(history), Retry)


@pytest.mark.parametrize(
    ("estimate_s", "used_s", "is_refused"),
    [
        (600, 3599, False),  # the cap is an hour: 1.5 × 600 = 900 is below it
        (600, 3600, True),
        (4000, 5999, False),  # 1.5 × 4000 = 6000
        (4000, 6000, True),
    ],
)
def test_all_attempts_together_stay_below_the_device_hours(
    estimate_s: float, used_s: float, is_refused: bool
) -> None:
    history = begun(estimated_device_s=estimate_s)
    retried(failed(history, "preempted", device_seconds=used_s / 2))
    decision = answer(failed(history, "preempted", device_seconds=used_s / 2))
    assert isinstance(decision, Refuse) == is_refused
    if isinstance(decision, Refuse):
        assert decision.limit == "device_hours"
        assert len(decision.counted_seqs) == 2


def test_attempts_of_a_person_use_device_hours_but_no_automatic_budget() -> None:
    history = begun()
    for count in range(2):
        retried(failed(history, "unknown", fingerprint=f"{count}"))
    failed(history, "unknown", fingerprint="c").refuse()
    failed(history.open(cause="manual_retry").place(), "unknown", fingerprint="d")
    refusal = answer(history)
    assert isinstance(refusal, Refuse)
    assert "2 of 2" in refusal.decision


def test_a_refusal_names_every_limit_that_is_exhausted() -> None:
    history = failed(begun(), "code_error", last_step=None, device_seconds=4000.0)
    refusal = answer(history)
    assert isinstance(refusal, Refuse)
    assert refusal.limit == "reason"
    assert "1.11 of 1.00 device-hours" in refusal.decision  # 4000 s / 3600 s


# --- free retries, budgets by time -----------------------------------------------------------------


@pytest.mark.parametrize("reason", ["unknown", "preempted", "node_failure"])
def test_an_attempt_that_never_started_is_free_twenty_times(reason: str) -> None:
    free = {"last_step": None, "first_line_ran": False, "device_seconds": 0.0}
    assert retries_of(reason, **free) == 20


def test_a_free_retry_is_debited_with_nothing_and_says_why() -> None:
    retry = answer(failed(begun(), "unknown", last_step=None, first_line_ran=False))
    assert isinstance(retry, Retry)
    assert retry.debit.amount == 0
    assert "first line" in retry.debit.why


@pytest.mark.parametrize(
    ("reason", "waited_h", "is_refused"),
    [
        ("scheduling_timeout", 23, False),
        ("scheduling_timeout", 24, True),
        ("image_pull", 0.9, False),
        ("image_pull", 1, True),
    ],
)
def test_waiting_for_a_machine_or_an_image_is_limited_by_time(
    reason: str, waited_h: float, is_refused: bool
) -> None:
    history = History().declare().open()
    history.at = history.state.attempts[0].opened_at + timedelta(hours=waited_h)
    failed(history, reason, last_step=None, first_line_ran=False, device_seconds=0.0)
    history.at = history.state.attempts[0].opened_at + timedelta(hours=waited_h)
    decision = decide(history.state, DEFAULT_POLICY, history.at)
    assert isinstance(decision, Refuse) == is_refused


def test_time_in_which_nobody_tried_is_not_counted() -> None:
    history = History().declare().open()
    history.at += timedelta(hours=3)  # nothing took it up: the daemon was off
    history.supervise()
    failed(history, "image_pull", last_step=None, first_line_ran=False, device_seconds=0.0)
    history.at += timedelta(hours=3)  # off once more
    assert isinstance(decide(history.state, DEFAULT_POLICY, history.at), Retry)


def test_a_person_who_opens_an_attempt_gives_it_its_whole_time() -> None:
    never_placed = {"last_step": None, "first_line_ran": False, "device_seconds": 0.0}
    history = History().declare().open()
    history.at += timedelta(hours=2)
    failed(history, "image_pull", **never_placed)
    assert isinstance(answer(history), Refuse)
    history.refuse().open(cause="manual_retry")
    failed(history, "image_pull", **never_placed)
    assert isinstance(answer(history), Retry)


def test_a_reason_that_is_never_retried_is_not_retried_free_either() -> None:
    rules = tuple(
        dataclasses.replace(r, count=0) if r.reason == "node_failure" else r
        for r in DEFAULT_POLICY.rules
    )
    policy = dataclasses.replace(DEFAULT_POLICY, rules=rules)
    never_placed = {"last_step": None, "first_line_ran": False, "device_seconds": 0.0}
    history = failed(History().declare().open(), "node_failure", **never_placed)
    assert isinstance(answer(history, policy=policy), Refuse)


def test_false_starts_between_days_of_progress_use_nothing_up() -> None:
    never_placed = {"last_step": None, "first_line_ran": False, "device_seconds": 0.0}
    history = begun(estimated_device_s=1e9)
    for day in range(30):
        failed(history.commit(10 * day + 10).verify(), "preempted")
        history.open(debit=retry_of(history).debit)
        failed(history, "node_failure", **never_placed)
        retried(history)


def test_many_short_waits_are_not_limited_by_number() -> None:
    history = History().declare().open()
    never_placed = {"last_step": None, "first_line_ran": False, "device_seconds": 0.0}
    for _ in range(30):
        failed(history, "scheduling_timeout", **never_placed)
        decision = answer(history)  # the backoff grows to half an hour: 30 of them are under 15 h
        assert isinstance(decision, Retry)
        history.open(debit=decision.debit)


# --- reclassified ----------------------------------------------------------------------------------


def test_a_reclassification_moves_the_debit() -> None:
    history = begun()
    retried(failed(history, "unknown", fingerprint="a"))
    retried(failed(history, "unknown", fingerprint="b"))
    history.reclassify(1, "node_failure")
    decision = answer(failed(history, "unknown", fingerprint="c"))
    assert isinstance(decision, Retry)  # one of the two is now a node failure's


def test_a_preemption_that_was_something_else_is_debited_after_all() -> None:
    history = begun()
    retried(failed(history, "preempted"))
    retried(failed(history, "preempted"))
    history.reclassify(1, "unknown").reclassify(2, "unknown")
    assert isinstance(answer(failed(history, "unknown", fingerprint="c")), Refuse)
