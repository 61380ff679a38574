"""Failures as software tells them: the right cause among noise and cascades, or `unknown`."""

from __future__ import annotations

import os
import random

import pytest

from tests.evidences import case
from tests.reasons.own_failures import ESTABLISHED, FAILURES, WARNINGS
from tracks_dagster.reasons.classify import classify
from tracks_dagster.reasons.rules.cause import LIKELY

SEED = int(os.environ.get("CLASSIFY_SEED", random.randrange(2**32)))

PREFIXES = (
    "",
    "[rank3]: ",
    "[rank: 3] ",
    "rank3: ",
    "2026-01-31T02:00:00.123456Z ",
    "[2026-01-31 02:00:00,123] ",
    "Jan 31 02:00:00 ",
    "[12345.678901] ",
    "(RayTrainWorker pid=123, ip=10.0.0.1) ",
    "[1,3]<stderr>:",
    "3: ",
    "\x1b[31m",
    "2026-01-31T02:00:00Z stderr F ",
    "ERROR: ",
    "[default3]:",
)
CASCADE = (
    "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network "
    "error\nConnection reset by peer"
)


def test_a_failure_is_read_as_its_cause_or_not_at_all() -> None:
    found = [(f, classify(case(f.log, **f.more)).reason) for f in FAILURES]
    assert [(f.id, reason) for f, reason in found if reason not in f.accept] == []


def test_there_is_enough_of_every_kind_to_say_something() -> None:
    assert len(FAILURES) > 250
    assert len({reason for failure in ESTABLISHED for reason in failure.accept}) > 20


@pytest.mark.parametrize("draws", [1, pytest.param(20, marks=pytest.mark.full)])
def test_what_a_terminal_or_a_collector_adds_changes_no_verdict(draws: int) -> None:
    print(f"CLASSIFY_SEED={SEED}")
    rng = random.Random(SEED)
    bar = "".join(f"\r{n}%|###   | {n}/100 [00:{n:02d}<01:00]" for n in range(60))
    for failure in ESTABLISHED * draws:
        first, second = rng.choice(PREFIXES), rng.choice(PREFIXES)
        shown = "\r\n".join(f"{first}{second}{line}\x1b[0m" for line in failure.log.splitlines())
        found = classify(case(f"{bar}\r{shown}\n"))
        assert (found.reason,) == failure.accept, (failure.id, first, second)


def test_the_cascade_of_other_ranks_changes_no_verdict() -> None:
    early, late = "2026-01-31T02:00:00.000000Z", "2026-01-31T02:00:10.000000Z"
    for failure in ESTABLISHED:
        ranks = [
            {"rank": 0, "exit_code": 1, "log_tail": CASCADE, "ended_at": early},
            {"rank": 1, "exit_code": 1, "log_tail": failure.log},
            {"rank": 2, "exit_code": 1, "log_tail": CASCADE, "ended_at": late},
        ]
        assert (classify(case(ranks=ranks)).reason,) == failure.accept, failure.id


# These end a job, and tell of a device, whatever the log says after them.
STATED = ("scheduler_line", "kernel_hardware", "requeued_itself", "job_cancelled")


BY_OTHERS = ({"exit_code": 137}, {"signal": "SIGTERM"}, {"exit_code": 0})


@pytest.mark.parametrize("nth", [1, pytest.param(3, marks=pytest.mark.full)], ids=["one", "all"])
def test_what_a_process_outlived_by_a_hundred_steps_is_not_a_cause_of_an_end_by_others(
    nth: int,
) -> None:
    """Of each failure with one such end in turn; in `full` with all of them."""
    steps = "".join(f"step {step} loss=1.9\n" for step in range(100))
    ends = [(f, BY_OTHERS[(n + k) % 3]) for n, f in enumerate(ESTABLISHED) for k in range(nth)]
    for failure, more in ends:
        verdict = classify(case(f"{failure.log}\n{steps}", **more))
        is_innocent = verdict.reason in ("unknown", "completed") or verdict.rule in STATED
        assert is_innocent, (failure.id, verdict)


@pytest.mark.parametrize("more", BY_OTHERS)
def test_the_warnings_of_every_log_are_not_a_cause_of_an_end_by_others(
    more: dict[str, object],
) -> None:
    verdict = classify(case(WARNINGS + "Step 100 loss=2.1\n", **more))
    assert verdict.reason in ("unknown", "completed")


def test_what_was_only_printed_is_not_a_sure_cause_of_an_end_in_silence() -> None:
    assert classify(case(WARNINGS, exit_code=1)).confidence <= LIKELY
