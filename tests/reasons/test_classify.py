"""Why an attempt ended: one table a weight, with evidence of our own, for one rank and for several."""

from __future__ import annotations

import json
from dataclasses import replace
from signal import SIGABRT, SIGBUS, SIGINT, SIGKILL, SIGSEGV, SIGTERM

import pytest

from tests.evidences import at, condition, end, evidence, word
from tracks_dagster.reasons.classify import (
    AGAINST_MAX,
    LINE_CHARACTERS_MAX,
    LINES_MAX,
    RULES,
    classify,
)
from tracks_dagster.reasons.endings import Ending, ending_check, ending_named, ending_of
from tracks_dagster.reasons.evidence import Evidence
from tracks_dagster.track.body_json import from_json, to_json
from tracks_dagster.track.names import EXIT_DRAINED, EXIT_FENCED
from tracks_dagster.track.reasons import ReasonFamily, TerminationReason
from tracks_dagster.track.records import canonical_json

PREEMPTED = condition("PreemptionByScheduler")
STOP = {"by": "ann", "why": "enough", "mode": "drain"}
GPU_OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.78 GiB."
BROKEN_SAVE = "TrainingError: The save of step 4 ended all: DistNetworkError: Broken pipe The last"
CLOSED = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]"
XID_79 = "NVRM: Xid (PCI:0000:3b:00): 79, pid=71, GPU has fallen off the bus."
XID_31 = "NVRM: Xid (PCI:0000:3b:00): 31, pid=71, Ch 00000008, intr 00000000. MMU Fault"

BY_WEIGHT = {
    "a stop asked for by a person weighs more than a preemption": (
        evidence(end(code=EXIT_DRAINED), stop=STOP, conditions=(PREEMPTED,)),
        "user_cancelled",
    ),
    "a Dagster run that a person cancelled is a stop": (
        evidence(end(code=EXIT_DRAINED), dagster={"status": "cancelled by a person"}),
        "user_cancelled",
    ),
    "a Dagster run that failed says nothing of the training": (
        evidence(end(by=SIGKILL), dagster={"status": "failed", "message": ""}),
        "unknown",
    ),
    "a job that a person cancelled in Slurm is a stop": (
        evidence(end(by=SIGTERM), slurm_state="CANCELLED by 1025"),
        "user_cancelled",
    ),
    "a preemption weighs more than the SIGKILL that carries it out": (
        evidence(end(by=SIGKILL), conditions=(PREEMPTED,)),
        "preempted",
    ),
    "a preemption is one too when the ranks saved and left in time": (
        evidence(end(code=EXIT_DRAINED, says=word("drained")), conditions=(PREEMPTED,)),
        "preempted",
    ),
    "a preemption weighs more than an Xid that came with it": (
        evidence(end(by=SIGKILL), conditions=(PREEMPTED,), kernel_lines=(XID_79,)),
        "preempted",
    ),
    "an Xid of the device weighs more than the exception it caused": (
        evidence(
            end(code=1, says=word("code_error", said="RuntimeError: CUDA error")),
            kernel_lines=(XID_79,),
        ),
        "gpu_hardware",
    ),
    "an Xid that the program caused blames no device": (
        evidence(
            end(code=1, says=word("code_error", said="RuntimeError: illegal address")),
            kernel_lines=(XID_31,),
        ),
        "code_error",
    ),
    "a node that was booted again is a node failure, whatever its ranks could say": (
        evidence(end(by=SIGKILL, says=word("gpu_oom")), boot_ids={"node-1": "boot-2"}),
        "node_failure",
    ),
    "a container's OOM weighs more than the exit code 0 of its main process": (
        evidence(end(code=0, oom_killed=True)),
        "host_oom",
    ),
    "a cgroup that counted a kill is a host OOM": (
        evidence(end(by=SIGKILL), cgroup={"memory.events.oom_kill": 1}),
        "host_oom",
    ),
    "a cgroup that counted none is not a host OOM": (
        evidence(end(by=SIGKILL), cgroup={"memory.events.oom_kill": 0}),
        "unknown",
    ),
    "the OOM killer's line in the kernel's log is a host OOM": (
        evidence(end(by=SIGKILL), kernel_lines=("Out of memory: Killed process 71 (python)",)),
        "host_oom",
    ),
    "a typed last word weighs more than other words in the log": (
        evidence(end(code=1, says=word("gpu_oom", said=GPU_OOM), log="Permission denied: 'x'")),
        "gpu_oom",
    ),
    "an exception weighs more than the exit code": (
        evidence(end(code=137, log=f"Traceback …\n{GPU_OOM}\n")),
        "gpu_oom",
    ),
}


@pytest.mark.parametrize("name", BY_WEIGHT)
def test_what_weighs_more_decides(name: str) -> None:
    given, reason = BY_WEIGHT[name]
    assert classify(given).reason == reason


CONDITIONS = {
    "PreemptionByScheduler": "preempted",
    "EvictionByEvictionAPI": "node_drained",
    "DeletionByTaintManager": "node_failure",
    "TerminationByKubelet": "host_oom",
}


@pytest.mark.parametrize("reason", CONDITIONS)
def test_each_disruption_of_kubernetes_has_its_reason(reason: str) -> None:
    given = evidence(end(code=143), conditions=(condition(reason, message="low on memory"),))
    assert classify(given).reason == CONDITIONS[reason]


SLURM_STATES = {
    "PREEMPTED": "preempted",
    "NODE_FAIL": "node_failure",
    "TIMEOUT": "walltime_timeout",
    "OUT_OF_MEMORY": "host_oom",
}


@pytest.mark.parametrize("state", SLURM_STATES)
def test_each_end_by_slurm_has_its_reason(state: str) -> None:
    assert classify(evidence(end(by=SIGTERM), slurm_state=state)).reason == SLURM_STATES[state]


def test_kueue_takes_a_workload_away_as_a_preemption() -> None:
    notice = condition("WorkloadEvictedDueToPreempted", type="TerminationTarget")
    assert classify(evidence(end(by=SIGKILL), conditions=(notice,))).reason == "preempted"


@pytest.mark.parametrize(
    ("killed_at", "notice_at", "reason"),
    [
        (40, 50, "host_oom"),  # the container was gone ten seconds before the condition
        (50, 50, "host_oom"),  # within one second: a container that is taken away says Error
        (60, 50, "preempted"),  # it ran over its memory while it was saving
        (None, 50, "host_oom"),  # not known: an OOM must not live on the preemption budget
        (40, None, "host_oom"),
    ],
)
def test_an_oom_before_the_disruption_stays_an_oom(
    killed_at: float | None, notice_at: float | None, reason: str
) -> None:
    rank = end(code=137, second=killed_at, oom_killed=True)
    notice = condition("PreemptionByScheduler", second=notice_at)
    assert classify(evidence(rank, conditions=(notice,))).reason == reason


def test_a_condition_after_every_end_is_not_why_they_ended() -> None:
    ranks = (end(0, code=1, says=word("gpu_oom", said=GPU_OOM)), end(1, by=SIGKILL, second=110))
    late = condition("PreemptionByScheduler", second=120)
    verdict = classify(evidence(*ranks, conditions=(late,)))
    assert verdict.reason == "gpu_oom"


GANGS = {
    "the rank that ran out of memory is blamed, not those that lost it": (
        (
            end(0, code=1, says=word("rank_lost_secondary", said=CLOSED, second=101)),
            end(1, code=1, says=word("gpu_oom", said=GPU_OOM, second=100, rank=1)),
            end(2, code=1, log=CLOSED, second=102),
        ),
        "gpu_oom",
    ),
    "a cause weighs more than a lost peer whose clock is ahead": (
        (
            end(0, code=1, log=CLOSED, second=90),
            end(1, code=1, log="ValueError: shapes do not fit", second=100),
        ),
        "code_error",
    ),
    "of two causes the earlier is the root": (
        (
            end(0, code=1, says=word("nan_loss", said="NonFinite: nan", second=100)),
            end(1, code=1, says=word("storage_io", said="StoreUnavailable: gone", second=130)),
        ),
        "nan_loss",
    ),
    "a rank that crashed is blamed, not the one that lost it": (
        (end(0, code=1, log=CLOSED, second=100), end(1, by=SIGSEGV, second=100)),
        "native_crash",
    ),
    "a rank that was killed leaves the cause unknown, not its peer's error": (
        (
            end(0, code=1, says=word("rank_lost_secondary", said=CLOSED, second=99)),
            end(1, by=SIGKILL, second=100),
        ),
        "unknown",
    ),
    "nor the save that its peer lost with it, though its word blames the code, and came first": (
        (
            end(0, code=1, says=word("code_error", said=BROKEN_SAVE, second=99)),
            end(1, by=SIGKILL, second=100),
        ),
        "unknown",
    ),
    "nor where the peer's node is gone, and nobody knows how the peer ended": (
        (end(0, code=1, says=word("code_error", said=BROKEN_SAVE)), end(1, second=None)),
        "network_fabric",
    ),
    "a time-out of the network counts for less than the rank that was killed before it": (
        (
            end(0, by=SIGKILL, second=100),
            end(1, code=1, log="Watchdog caught collective operation timeout", second=1900),
        ),
        "unknown",
    ),
    "ranks that all only lost a peer have no root": (
        (end(0, code=1, log=CLOSED), end(1, code=1, log=CLOSED)),
        "rank_lost_secondary",
    ),
    "one silent failure among ranks that completed is not a completion": (
        (end(0, code=0, says=word("completed")), end(1, code=3)),
        "unknown",
    ),
    "a fenced rank gives no reason; the others do": (
        (
            end(0, code=EXIT_FENCED, says=word("fenced", second=10)),
            end(1, code=1, says=word("gpu_oom", said=GPU_OOM, second=100)),
        ),
        "gpu_oom",
    ),
}


@pytest.mark.parametrize("name", GANGS)
def test_in_a_gang_the_initiating_failure_is_the_reason(name: str) -> None:
    ranks, reason = GANGS[name]
    assert classify(evidence(*ranks)).reason == reason


SILENT = {
    "SIGKILL alone is neither an OOM nor a preemption": (end(by=SIGKILL), "unknown"),
    "exit code 137 alone is the same": (end(code=137), "unknown"),
    "a segmentation fault is a native crash": (end(by=SIGSEGV), "native_crash"),
    "an abort is a native crash": (end(by=SIGABRT), "native_crash"),
    "a bus error alone may be full shared memory as well as a crash": (end(by=SIGBUS), "unknown"),
    "exit code 139 is a segmentation fault": (end(code=139), "native_crash"),
    "SIGINT comes from a person": (end(by=SIGINT), "user_cancelled"),
    "exit code 1 alone says nothing": (end(code=1), "unknown"),
    "a SIGTERM that was obeyed has no sender": (
        end(code=EXIT_DRAINED, says=word("drained")),
        "unknown",
    ),
    "a SIGTERM that was not obeyed has none either": (end(by=SIGTERM), "unknown"),
    "fenced is never an attempt's reason": (
        end(code=EXIT_FENCED, says=word("fenced")),
        "unknown",
    ),
    "a script that stops early with a code of its own has failed": (
        end(code=3, says=word("early_stopped")),
        "unknown",
    ),
    "one with an exception after it, by that": (
        end(code=1, says=word("early_stopped"), log="ValueError: no more data"),
        "code_error",
    ),
}


@pytest.mark.parametrize("name", SILENT)
def test_an_end_without_words_is_classified_by_code_and_signal(name: str) -> None:
    rank, reason = SILENT[name]
    verdict = classify(evidence(rank))
    assert verdict.reason == reason
    assert verdict.confidence <= 0.7


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("", "unknown"),
        ("step 40 loss 2.0", "unknown"),
        ("step 40/1000 loss 2.0", "unknown"),
        ("worker group: rank 3 failed, leaving", "unknown"),
        ("step 1000/1000 loss 2.0", "completed"),
        ("Epoch 3 of 3\nwrote the model", "completed"),
        ("Training finished.", "completed"),
    ],
)
def test_exit_code_0_is_a_completion_only_after_the_last_step(log: str, reason: str) -> None:
    elsewhere = replace(evidence(end(code=0, log=log)), run_id="", placed=False)
    assert classify(elsewhere).reason == reason


def test_exit_code_0_after_a_step_is_not_a_completion_without_the_word_of_it() -> None:
    found = classify(evidence(end(code=0), last_step=40))
    assert found.reason == "code_error"
    assert "after step 40" in found.lines[0]
    said = classify(evidence(end(code=0, says=word("completed")), last_step=40))
    assert said.reason == "completed"


@pytest.mark.parametrize(
    ("placed", "words"),
    [(False, "none joined"), (True, "none ran a step")],
    ids=["no join", "no step"],
)
def test_an_attempt_that_ended_with_0_and_trained_nothing_is_not_completed(
    placed: bool, words: str
) -> None:
    found = classify(replace(evidence(end(code=0)), run_id="r-1", placed=placed, last_step=None))
    assert found.reason == "code_error"
    assert words in " ".join(found.lines)


def test_an_attempt_with_all_its_steps_is_completed_whatever_came_with_it() -> None:
    ranks = tuple(end(n, code=0, says=word("completed", rank=n)) for n in range(3))
    verdict = classify(evidence(*ranks, stop=STOP, conditions=(PREEMPTED,)))
    assert (verdict.reason, verdict.confidence) == ("completed", 1.0)
    assert [line.split()[0] for line in verdict.against] == ["stop_requested", "condition"]


def test_a_gang_that_vanished_is_unknown_and_says_when_it_was_last_seen() -> None:
    verdict = classify(evidence(vanished=True, last_heartbeat_at=at(42)))
    assert verdict.reason == "unknown"
    assert at(42) in verdict.lines[0]


def test_an_attempt_that_never_started_tells_what_its_supervisor_met() -> None:
    verdict = classify(evidence(placed=False, dagster={"message": "cannot fork"}, vanished=True))
    assert (verdict.reason, verdict.rule) == ("unknown", "never_started")
    assert "cannot fork" in verdict.root_message


WORDS = {
    "RuntimeError: DefaultCPUAllocator: can't allocate memory: 8 bytes": "host_oom",
    "MemoryError": "host_oom",
    "OSError: [Errno 28] No space left on device: '/scratch/a'": "disk_full",
    "RuntimeError: DataLoader worker is killed by signal: Bus error. It is possible that "
    "dataloader's workers are out of shared memory.": "shm_exhausted",
    "PermissionError: [Errno 13] Permission denied: '/scratch'": "permission_denied",
    "botocore.exceptions.ClientError: An error occurred (AccessDenied)": "permission_denied",
    "ModuleNotFoundError: No module named 'flash_attn'": "dependency_mismatch",
    "ImportError: libcudart.so.12: cannot open shared object file": "dependency_mismatch",
    "RuntimeError: PytorchStreamReader failed reading zip archive": "checkpoint_corrupt",
    "OSError: [Errno 5] Input/output error": "storage_io",
    "PIL.UnidentifiedImageError: cannot identify image file 'a.jpg'": "bad_input_data",
    "omegaconf.errors.ConfigAttributeError: Key 'lrr' is not in struct": "config_error",
    "RuntimeError: DataLoader timed out after 60 seconds": "data_loader_stall",
    "tracks_dagster.track.errors.NonFinite: the loss of step 7 is nan": "nan_loss",
    "ValueError: expected sequence of length 3": "code_error",
    "my.pkg.ShapeError: 3 is not 4": "code_error",
}


@pytest.mark.parametrize("said", WORDS)
def test_common_words_tell_their_cause_in_a_log_and_in_a_last_word(said: str) -> None:
    log = f"step 3\nTraceback (most recent call last):\n  File …\n{said}\n"
    assert classify(evidence(end(code=1, log=log))).reason == WORDS[said]
    spoken = end(code=1, says=word("code_error", said=said))
    assert classify(evidence(spoken)).reason == WORDS[said]


def test_a_reading_against_the_verdict_is_kept_in_words() -> None:
    given = evidence(end(by=SIGKILL, oom_killed=True, second=60), conditions=(PREEMPTED,))
    verdict = classify(given)
    assert verdict.reason == "preempted"
    assert verdict.against == ("container_oom_killed speaks for host_oom: OOM-killed: rank 0",)


@pytest.mark.parametrize("reason", ["gpu_oom", "code_error"])
def test_an_exception_with_a_row_of_its_own_is_not_read_as_the_codes_too(reason: str) -> None:
    for said in (GPU_OOM, "builtins.ModuleNotFoundError: No module named 'apex'"):
        verdict = classify(evidence(end(code=1, log=said, says=word(reason, said=said))))
        assert not any("code_error" in line for line in verdict.against)


def test_a_verdict_stays_small_however_long_the_evidence_is() -> None:
    said = f"builtins.ValueError: {'x' * 100_000}"
    conditions = tuple(condition("PreemptionByScheduler", message="y" * 9_000) for _ in range(99))
    verdict = classify(
        evidence(end(code=1, says=word("code_error", said=said)), conditions=conditions)
    )
    assert len(verdict.lines) <= LINES_MAX
    assert len(verdict.against) <= AGAINST_MAX
    texts = (*verdict.lines, *verdict.against, verdict.root_message)
    assert max(map(len, texts)) <= LINE_CHARACTERS_MAX


def test_no_evidence_at_all_is_unknown() -> None:
    assert classify(evidence()).reason == "unknown"


def test_rules_stand_in_the_order_of_their_weights() -> None:
    weights = [rule.weight for rule in RULES]
    assert weights == sorted(weights)
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_evidence_is_the_same_after_json() -> None:
    given = evidence(
        end(code=1, says=word("gpu_oom", said=GPU_OOM)),
        end(1, by=SIGKILL, second=None),
        conditions=(PREEMPTED,),
        stop=STOP,
        cgroup={"oom_kill": 1},
        boot_ids={"node-1": "boot-2"},
    )
    stored = canonical_json(to_json(given))
    assert from_json(Evidence, json.loads(stored)) == given
    assert classify(from_json(Evidence, json.loads(stored))) == classify(given)


# Which ends are failures, interruptions, or as meant.


@pytest.mark.parametrize("reason", TerminationReason)
def test_every_reason_asks_exactly_one_thing_of_people(reason: TerminationReason) -> None:
    expected = {
        ReasonFamily.AS_MEANT: Ending.AS_MEANT,
        ReasonFamily.CAPACITY: Ending.INTERRUPTION,
    }.get(reason.family, Ending.FAILURE)
    if reason is TerminationReason.ORCHESTRATOR_LOST:
        expected = Ending.INTERRUPTION  # the training itself did not fail
    assert ending_of(reason) is ending_named(reason.value) is expected


def test_a_reason_of_a_newer_version_wants_a_look() -> None:
    assert ending_named("eaten_by_bears") is Ending.FAILURE


@pytest.mark.parametrize(
    ("reason", "passed", "is_failure"),
    [("completed", True, False), ("preempted", False, False), ("unknown", False, True)],
)
def test_the_check_of_an_attempt_passes_warns_or_fails(
    reason: str, passed: bool, is_failure: bool
) -> None:
    check = ending_check(TerminationReason(reason), "how it went.")
    assert (check.passed, check.is_failure) == (passed, is_failure)
    assert check.words.startswith(f"{reason}: ")
