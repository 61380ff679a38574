"""What follows on the state of a run; `test_decide_budgets` has how often."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.bodies import BEGIN, placed
from tests.histories import History
from tracks_dagster.ledger.deciding import Wait
from tracks_dagster.retry.decide import decide
from tracks_dagster.retry.decision import Decision, Finish, Refuse, Retry
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.retry.policy import RetryPolicy
from tracks_dagster.track.bodies import ComputeRequest
from tracks_dagster.track.records import Kind

HOUR = 3600.0
FAR = timedelta(days=30)  # after every backoff
GPU_CONFIG = {"micro_batch": 8, "accumulation": 3, "global_batch": 48}


def begun(**declared: Any) -> History:
    """Return a run whose first attempt is under way."""
    return History().declare(**declared).open().place().restore()


def failed(history: History, reason: str, **changes: Any) -> History:
    """End the open attempt; by default it ran steps and its failure is the same every time."""
    return history.end(reason, **{"last_step": 3} | changes)


def answer(history: History, *, policy: RetryPolicy = DEFAULT_POLICY) -> Decision:
    """Return the decision once every backoff is over."""
    decision = decide(history.state, policy, history.at)
    if isinstance(decision, Wait) and decision.until is not None:
        history.at = max(history.at, decision.until)
        decision = decide(history.state, policy, history.at)
    return decision


def retry_of(history: History) -> Retry:
    decision = answer(history)
    assert isinstance(decision, Retry)
    return decision


def retried(history: History, *, policy: RetryPolicy = DEFAULT_POLICY) -> History:
    """Open the attempt that the decision wants."""
    decision = answer(history, policy=policy)
    assert isinstance(decision, Retry), decision
    history.open(
        config=decision.config,
        compute=decision.compute,
        debit=decision.debit,
        remediation=decision.remediation,
        resume=decision.resume,
    )
    return history.place().restore()


# --- remedies --------------------------------------------------------------------------------------


def test_a_gpu_oom_halves_the_micro_batch_three_times_and_never_repeats_a_config() -> None:
    history = History().declare(config=GPU_CONFIG).open().place()
    seen = []
    for expected in (4, 2, 1):
        seen.append(dict(history.state.attempts[-1].opened.config))
        retried(failed(history, "gpu_oom", fingerprint=f"{expected}"))
        config = history.state.attempts[-1].opened.config
        assert config["micro_batch"] == expected
        assert config["micro_batch"] * config["accumulation"] * 2 == 48
        assert dict(config) not in seen
    refusal = answer(failed(history, "gpu_oom", fingerprint="x"))
    assert isinstance(refusal, Refuse)
    assert refusal.limit == "reason"  # 3 of 3


def test_a_gpu_oom_with_nothing_left_to_change_is_refused_for_that() -> None:
    history = failed(begun(config={"micro_batch": 1, "accumulation": 24}), "gpu_oom")
    refusal = answer(history)
    assert isinstance(refusal, Refuse)
    assert refusal.limit == "remediation"
    assert "micro_batch cannot be halved any more" in refusal.decision


def test_other_retries_keep_the_remedied_config() -> None:
    history = History().declare(config=GPU_CONFIG).open().place()
    retried(failed(history, "gpu_oom"))
    retry = answer(failed(history, "preempted"))
    assert isinstance(retry, Retry)
    assert retry.config["micro_batch"] == 4
    assert retry.remediation == ()


def test_a_failed_node_is_left_at_once_and_a_preempting_one_after_three_in_an_hour() -> None:
    cluster = ComputeRequest(launcher="k8s", ranks=2)
    retry = answer(failed(begun(compute=cluster), "node_failure"))
    assert isinstance(retry, Retry)
    assert retry.compute.excluded_nodes == ("node-1",)
    history = begun(compute=cluster)
    for _ in range(2):
        retried(failed(history, "preempted"))
        assert history.state.attempts[-1].opened.compute.excluded_nodes == ()
    third = answer(failed(history, "preempted"))
    assert isinstance(third, Retry)
    assert third.compute.excluded_nodes == ("node-1",)


def test_the_nodes_left_stay_within_what_a_record_and_a_cluster_can_bear() -> None:
    compute = ComputeRequest(ranks=1, launcher="kubernetes", device_class="h100")
    history = History().declare(compute=compute, estimated_device_s=1e9).open()
    for count in range(200):
        node = f"gke-{'x' * 200}-{count}"
        places = tuple(dataclasses.replace(p, node=node) for p in placed("x").ranks[:1])
        failed(history.place(ranks=places).restore().commit(count + 1).verify(), "node_failure")
        retry = retry_of(history)
        assert node in retry.compute.excluded_nodes
        assert len(retry.compute.excluded_nodes) <= 16
        history.open(compute=retry.compute, debit=retry.debit, remediation=retry.remediation)
    assert "gke" in retry.compute.excluded_nodes[0]


def test_a_host_oom_gets_half_more_memory() -> None:
    compute = ComputeRequest(launcher="k8s", memory_bytes=1000)
    retry = answer(failed(begun(compute=compute), "host_oom"))
    assert isinstance(retry, Retry)
    assert retry.compute.memory_bytes == 1500


# --- what a retry holds ----------------------------------------------------------------------------


def test_a_retry_resumes_from_the_newest_checkpoint_and_names_its_records() -> None:
    history = failed(begun().commit(10).commit(20), "preempted", last_step=23)
    retry = answer(history)
    assert isinstance(retry, Retry)
    assert retry.resume == history.state.checkpoints[-1].ref
    assert "resumes from step 20 of attempt 1" in retry.decision
    assert "0.03 of 1.00 device-hours" in retry.decision  # 120 s of 3600 s
    assert history.state.head.seq in retry.counted_seqs


def test_a_retry_whose_checkpoints_are_all_quarantined_says_so() -> None:
    history = begun().commit(10)
    history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, history.state.checkpoints[0].ref)
    retry = answer(failed(history, "preempted"))
    assert isinstance(retry, Retry)
    assert "none of its 1 checkpoints may be resumed from" in retry.decision


def test_a_retry_without_a_checkpoint_starts_afresh() -> None:
    retry = answer(failed(begun(), "preempted"))
    assert isinstance(retry, Retry)
    assert retry.resume is None
    assert "starts afresh" in retry.decision


def test_a_preemption_is_retried_within_a_second() -> None:
    history = failed(begun(), "preempted")
    second = timedelta(seconds=1)
    assert isinstance(decide(history.state, DEFAULT_POLICY, history.state.head.at + second), Retry)


def test_preemptions_without_a_step_of_progress_come_back_ever_more_slowly() -> None:
    history, delays = begun(estimated_device_s=1e9), []
    for _ in range(12):
        failed(history, "preempted", device_seconds=0.5)
        wait = decide(history.state, DEFAULT_POLICY, history.state.head.at)
        assert isinstance(wait, Wait)
        assert wait.until is not None
        delays.append((wait.until - history.state.head.at).total_seconds())
        retried(history)
    for count, delay_s in enumerate(delays):
        assert 0.5 * min(600, 2**count) <= delay_s <= min(600, 2**count)


def test_progress_begins_the_backoff_again() -> None:
    history = begun(estimated_device_s=1e9)
    for _ in range(6):
        failed(history, "preempted")
        retried(history)
    failed(history.commit(10).verify(), "preempted")
    second = timedelta(seconds=1)
    assert isinstance(decide(history.state, DEFAULT_POLICY, history.state.head.at + second), Retry)


def test_backoff_doubles_and_stays_within_its_bounds() -> None:
    history, delays = begun(), []
    for count in range(5):
        failed(history, "node_failure", fingerprint=f"{count}")
        wait = decide(history.state, DEFAULT_POLICY, history.state.head.at)
        assert isinstance(wait, Wait)
        assert wait.until is not None
        delays.append((wait.until - history.state.head.at).total_seconds())
        retried(history)
    for count, delay_s in enumerate(delays):
        assert 2.5 * 2**count <= delay_s <= 5.0 * 2**count  # 5 s × 2^count × (0.5 to 1)


def test_a_clock_that_is_far_behind_the_end_waits_for_no_backoff() -> None:
    history = failed(begun(), "node_failure")
    assert isinstance(decide(history.state, DEFAULT_POLICY, BEGIN - FAR), Retry)


def test_a_record_by_a_clock_that_is_ahead_lets_no_debit_leave_its_window() -> None:
    history = begun(estimated_device_s=1e9)
    for count in range(5):
        failed(history, "node_failure", fingerprint=f"{count}")
        retried(history)
    failed(history, "node_failure", fingerprint="5")
    now = history.at + timedelta(hours=1)
    history.at += timedelta(days=8)
    history.note()
    assert isinstance(decide(history.state, DEFAULT_POLICY, now), Refuse)


# --- everything but a retry ------------------------------------------------------------------------


def completed() -> History:
    return begun().commit(40).end("completed", last_step=40)


def test_a_completed_run_waits_for_its_evals_and_its_promotion_then_finishes() -> None:
    history = completed()
    waits = answer(history)
    assert isinstance(waits, Wait)
    assert "heldout-loss@40" in waits.why
    history.open_eval(history.state.checkpoints[-1].ref)
    opened = history.state.evals[-1].opened
    history.end_eval(opened)
    waits = answer(history)
    assert isinstance(waits, Wait)
    assert "promotion" in waits.why
    finish = answer(history.promote(opened))
    assert isinstance(finish, Finish)
    assert (finish.stop_cause, finish.final) == ("step_budget", opened.checkpoint)


def test_a_waived_eval_holds_nothing_up() -> None:
    finish = answer(completed().waive_eval())
    assert isinstance(finish, Finish)


def test_an_early_stop_says_so() -> None:
    history = begun(evals=(), promotion=None).commit(20).end("early_stopped", last_step=20)
    finish = answer(history)
    assert isinstance(finish, Finish)
    assert finish.stop_cause == "early_stop"


def test_a_stopped_run_finishes_when_its_attempt_has_ended() -> None:
    history = begun().commit(20).stop()
    assert isinstance(answer(history), Wait)
    finish = answer(failed(history, "user_cancelled"))
    assert isinstance(finish, Finish)
    assert (finish.stop_cause, finish.final) == ("user", history.state.checkpoints[-1].ref)


def test_a_refused_run_can_still_be_stopped() -> None:
    history = failed(begun(), "code_error", last_step=None).refuse().stop()
    assert isinstance(answer(history), Finish)


@pytest.mark.parametrize("reason", ["user_cancelled", "preempted"])
def test_a_drained_run_waits_for_a_person(reason: str) -> None:
    waits = answer(failed(begun().stop("drain"), reason))
    assert isinstance(waits, Wait)
    assert waits.until is None
    assert "ann" in waits.why
    assert "tracks retry r-1" in waits.why


def test_a_drain_does_not_hold_the_attempts_that_a_person_opens_after_it() -> None:
    history = failed(begun().stop("drain"), "user_cancelled")
    history.open(cause="manual_retry").place()
    assert isinstance(answer(failed(history, "preempted")), Retry)


def test_a_refusal_stands_until_a_person_goes_on() -> None:
    history = failed(begun(), "code_error", last_step=None).refuse()
    history.at += FAR
    assert isinstance(answer(history), Wait)


@pytest.mark.parametrize(
    "history",
    [
        History().declare(),
        History().declare().open(),
        begun().commit(40).end("completed", last_step=40).waive_eval().finish(),
    ],
    ids=["declared", "open", "finished"],
)
def test_nothing_is_due_on_a_run_that_is_not_between_attempts(history: History) -> None:
    assert isinstance(answer(history), Wait)


def test_device_hours_that_ran_out_during_an_attempt_are_refused() -> None:
    refusal = answer(failed(begun(), "budget_exhausted"))
    assert isinstance(refusal, Refuse)
    assert refusal.limit == "device_hours"


def test_another_policy_decides_otherwise() -> None:
    rules = tuple(
        dataclasses.replace(r, count=0) if r.reason == "unknown" else r
        for r in DEFAULT_POLICY.rules
    )
    strict = dataclasses.replace(DEFAULT_POLICY, rules=rules)
    history = failed(begun(), "unknown")
    assert isinstance(answer(history), Retry)
    assert isinstance(answer(history, policy=strict), Refuse)


def test_now_stands_in_the_decision() -> None:
    retry = decide(
        failed(begun(), "preempted").state,
        DEFAULT_POLICY,
        datetime.max.replace(tzinfo=BEGIN.tzinfo, microsecond=0),
    )
    assert isinstance(retry, Retry)
    assert "Decided as of 9999-12-31" in retry.decision
