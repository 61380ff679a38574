"""Who may speak of a preemption: a scheduler's marked line, words about this job, no talk of others."""

from __future__ import annotations

import os
import random

import pytest

from tests.evidences import case, end, evidence, word
from tracks_dagster.reasons.classify import classify
from tracks_dagster.reasons.rules.cause import LIKELY
from tracks_dagster.track.reasons import TerminationReason

SEED = int(os.environ.get("CLASSIFY_SEED", random.randrange(2**32)))
PREEMPTED = (
    "slurmstepd: error: *** JOB 7 ON n2 CANCELLED AT 2030-01-02T03:04:05 DUE TO PREEMPTION ***"
)
AGAIN = ("=== attempt 3 ===", "resuming from step 40", "Restored state from the checkpoint at 40")
TALK = (
    "  --preempt  stop when the job is preempted",
    "if the instance is preempted, run it again",
    "this pool's VM may be preempted",
    "# a spot interruption notice comes two minutes before",
    "The task was preempted, or crashed",
    "watching for a spot termination notice every 5 s",
    "Tip: the spot instance was preempted? Run it again",
    "request task 4 is preempted by PreemptionMode.SWAP",
    "job 4 was preempted 3 times so far",
    "the task has failed, got preempted, or crashed",
    "the cluster is preempted or failed",
    "no preemption notice was received",
    "kernel 6.3 SMP PREEMPT_DYNAMIC",
    "num_preemptions=2 preemptible=True",
    "job 4 preempted by job 9",
    "autoscaler: node 10.1.2.3 was preempted, a new one is on its way",
    "a sibling VM was reclaimed by its owner",
    "batch jobs of guests are preempted by jobs of the owners",
    "gang 2 lost worker-5: it was preempted a minute ago",
    # What a process makes of a signal: its sender is not known.
    "received a pre-emption warning",
    "Got signal 15, this must be a preemption: writing a checkpoint",
    "[handler] SIGTERM: the job is being preempted, flushing",
    "SIGUSR1 caught, we are about to be preempted",
    "spot interruption signal received; leaving the loop",
)
SAID = (
    PREEMPTED,
    "PreemptionError: nodes of this job got pre-empted",
    "State: PREEMPTED",
    "the TPU slice was preempted",
    "the spot VM was evicted",
    'EventType: "Preempt"',
    "our instance has been reclaimed",
)
# Talk of what a scheduler does, each followed by what really ended the rank.
OF_OTHERS = {
    "preempted": TALK,
    "walltime_timeout": (
        "search: time limit reached for one trial, going on",
        "eval item 12: exceeded the time limit",
        "rpc error: DeadlineExceeded while pushing metrics",
    ),
    "node_drained": ("News: all nodes will be drained for maintenance, jobs are terminated",),
    "host_oom": (
        "srun: note: tasks beyond their memory are Out Of Memory killed",
        "watcher: pod log-shipper was OOMKilled",
    ),
}


def _steps(first: int, number: int) -> str:
    return "".join(f"step {step} loss=1.9\n" for step in range(first, first + number))


@pytest.mark.parametrize("talk", TALK)
@pytest.mark.parametrize("more", [{"signal": "SIGTERM"}, {"exit_code": 137}, {"exit_code": 1}])
def test_talk_of_preemption_makes_none(talk: str, more: dict[str, object]) -> None:
    print(f"CLASSIFY_SEED={SEED}")
    rng = random.Random(f"{SEED}/{talk}")
    log = f"{_steps(0, rng.randrange(9))}{talk}\n{_steps(9, rng.randrange(40))}"
    assert classify(case(log, **more)).reason == TerminationReason.UNKNOWN


@pytest.mark.parametrize("said", SAID)
@pytest.mark.parametrize("more", [{"signal": "SIGTERM"}, {"exit_code": 137}, {"exit_code": 1}])
def test_a_preemption_is_read_however_it_is_said(said: str, more: dict[str, object]) -> None:
    log = f"{_steps(0, 4)}{said}\n[rank1]: Connection reset by peer\n"
    assert classify(case(log, **more)).reason == TerminationReason.PREEMPTED


@pytest.mark.parametrize("reason", OF_OTHERS)
def test_an_exception_weighs_more_than_talk_of_others(reason: str) -> None:
    for talk in OF_OTHERS[reason]:
        log = f"{_steps(0, 9)}{talk}\nTraceback (most recent call last):\nKeyError: 'x'\n"
        found = classify(case(log, exit_code=1))
        assert found.reason == "code_error", talk


@pytest.mark.parametrize("said", SAID[1:])
def test_words_of_a_preemption_are_below_an_exception_and_a_typed_last_word(said: str) -> None:
    log = f"{_steps(0, 4)}{said}\nTraceback (most recent call last):\nKeyError: 'x'\n"
    assert classify(case(log, exit_code=1)).reason == "code_error"
    typed = end(code=1, says=word("gpu_oom", said="torch.OutOfMemoryError: no"), log=said)
    assert classify(evidence(typed)).reason == "gpu_oom"
    assert classify(case(f"{said}\n{_steps(5, 3)}", signal="SIGTERM")).reason == "unknown"


@pytest.mark.parametrize("said", SAID[1:])
def test_words_alone_are_never_as_sure_as_a_control_plane(said: str) -> None:
    assert classify(case(said)).confidence <= LIKELY < classify(case(PREEMPTED)).confidence


@pytest.mark.parametrize(
    ("before", "state", "reason"),
    [
        ("srun: job 7 has been allocated resources", None, "preempted"),
        ("SLURM_JOB_ID=7", None, "preempted"),
        ("SLURM_JOB_ID=8", None, "code_error"),  # the line is of another job
        ("Submitted batch job 8", None, "code_error"),
        ("", "FAILED", "code_error"),  # Slurm itself says that it failed of itself
        ("", "PREEMPTED", "preempted"),
    ],
)
def test_a_marked_line_counts_for_this_job(before: str, state: str | None, reason: str) -> None:
    log = f"{before}\n{PREEMPTED}\nTraceback (most recent call last):\nKeyError: 'x'\n"
    assert classify(case(log, exit_code=1, slurm_state=state)).reason == reason


def test_a_line_that_quotes_a_scheduler_has_no_mark() -> None:
    log = f"the docs show '{PREEMPTED}'\nTraceback (most recent call last):\nKeyError: 'x'\n"
    assert classify(case(log, exit_code=1)).reason == "code_error"


@pytest.mark.parametrize("again", AGAIN)
def test_what_ended_an_earlier_start_is_over(again: str) -> None:
    log = f"{_steps(0, 9)}{PREEMPTED}\n{again}\n"
    assert classify(case(log + _steps(40, 9), signal="SIGKILL")).reason == TerminationReason.UNKNOWN
    ended_again = f"{log}{_steps(40, 9)}{PREEMPTED}\n"
    assert classify(case(ended_again, signal="SIGTERM")).reason == TerminationReason.PREEMPTED


@pytest.mark.parametrize("steps", [0, 3, 60])
def test_a_job_may_go_on_for_its_time_of_grace(steps: int) -> None:
    log = f"{_steps(0, 9)}{PREEMPTED}\n{_steps(9, steps)}[rank0]: Connection reset by peer\n"
    assert classify(case(log, exit_code=1)).reason == TerminationReason.PREEMPTED


def test_a_wait_for_machines_is_over_once_the_job_has_them() -> None:
    log = "srun: job 5 queued and waiting for resources\n"
    assert classify(case(log)).reason == TerminationReason.SCHEDULING_TIMEOUT
    log += "srun: job 5 has been allocated resources\n" + _steps(0, 3)
    assert classify(case(log, exit_code=137)).reason == TerminationReason.UNKNOWN


@pytest.mark.parametrize(
    "line",
    [
        "slurmstepd-n4: error: StepId=4.0 exceeded memory limit (226 > 214), being killed",
        "slurmstepd: error: Exceeded job memory limit",
        "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=4.0.",
    ],
)
def test_memory_that_slurm_counted_itself_is_the_reason_of_a_job_that_failed(line: str) -> None:
    """As of a real job: its ranks had SIGTERM first, and died in the save that they began."""
    cancelled = "slurmstepd-n3: error: *** STEP 4.0 ON n3 CANCELLED AT 2026-11-28T20:14:27 ***"
    last = word("code_error", said="TrainingError: The save of step 160 ended all: Broken pipe")
    killed = end(by=9, log=f"{line}\n{cancelled}", says=last)
    assert classify(evidence(killed, slurm_state="FAILED")).reason == "host_oom"
