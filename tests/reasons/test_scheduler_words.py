"""Words of schedulers in a log: what happened now, not what would, nor what an earlier start met."""

from __future__ import annotations

import os
import random

import pytest

from tests.evidences import case
from tracks_dagster.reasons.classify import classify
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
)
SAID = (
    PREEMPTED,
    "PreemptionError: nodes of this job got pre-empted",
    "job 4 preempted by job 9",
    "State: PREEMPTED",
    "the TPU slice was preempted",
    "the spot VM was evicted",
    'EventType: "Preempt"',
    "received a pre-emption warning",
)


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
