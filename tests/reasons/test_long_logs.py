"""Logs of real length: what a process outlived, many ranks in one file, series, wrapped failures."""

from __future__ import annotations

import json

import pytest

from tests.evidences import case, end, evidence, word
from tracks_dagster.reasons.classify import classify
from tracks_dagster.reasons.rules.cause import LEANING
from tracks_dagster.reasons.shared_logs import by_rank

KEY_ERROR = "Traceback (most recent call last):\n  File \"/app/t.py\", line 3\nKeyError: 'w'\n"
GPU_OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
FRAME = "frame #{n}: c10d::Backend::run(int) + 0x{n}d (0x7f in libtorch.so)\n"


def steps(first: int, count: int) -> str:
    return "".join(f"step {n} loss {2.0 - n * 0.001:.3f}\n" for n in range(first, first + count))


def reason_of(log: str, **more: object) -> str:
    return classify(case(log, **more)).reason


# --- survived: steps went on ---


@pytest.mark.parametrize(
    "printed",
    [
        "n1:7:9 [0] NCCL WARN NET/OFI cannot set up the plugin: error",
        "No module named 'fused', plain kernels are used",
        "cannot open shared object file libfast.so.3",
        "the lock file does not exist",
        "Permission denied: /sys/class/power",
        "some storage answered 503 Service Unavailable",
    ],
)
def test_a_healthy_warning_before_an_exception_is_not_a_cause(printed: str) -> None:
    assert reason_of(f"{steps(0, 9)}{printed}\n{KEY_ERROR}", exit_code=1) == "code_error"
    assert reason_of(f"{steps(0, 9)}{printed}\n{GPU_OOM}", exit_code=1) == "gpu_oom"
    assert reason_of(f"{printed}\n{steps(0, 1)}", signal="SIGKILL") == "unknown"


@pytest.mark.parametrize("more", [{}, {"exit_code": 1}])
def test_what_steps_went_on_after_is_not_a_last_resort_either(more: dict[str, object]) -> None:
    said = "Out of memory: Killed process 991 (browser)\nnode n7 died, its tasks move\n"
    assert reason_of(steps(0, 9) + said + steps(9, 9), **more) == "unknown"


def test_an_exception_after_which_steps_went_on_is_over() -> None:
    earlier = "Traceback (most recent call last):\nOSError: [Errno 28] No space left on device\n"
    assert reason_of(earlier + steps(0, 5) + KEY_ERROR, exit_code=1) == "code_error"
    # A process that is being ended logs a step or two more.
    assert reason_of(steps(0, 5) + earlier + steps(5, 2), exit_code=1) == "disk_full"


def test_of_what_was_only_printed_the_last_thing_said_counts() -> None:
    said = (
        "a port is already in use: Address already in use\ncp: /ckpt/a: No space left on device\n"
    )
    assert reason_of(steps(0, 9) + said, exit_code=1) == "disk_full"


@pytest.mark.parametrize("number", [30, 700])
def test_frames_and_lines_of_a_runtime_are_not_a_distance(number: int) -> None:
    frames = "".join(FRAME.format(n=n) for n in range(number))
    nccl = "".join(f"n1:71:{n} [0] NCCL INFO comm 0x7f rank 0 - Abort\n" for n in range(number))
    assert reason_of(GPU_OOM + frames + nccl, signal="SIGABRT") == "gpu_oom"


def test_a_step_of_slurm_is_not_a_step_of_the_training() -> None:
    epilogue = "slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT 2030-01-01T00:00:00 ***\n"
    said = "cp: /ckpt/a: No space left on device\n"
    assert reason_of(steps(0, 3) + said + epilogue, exit_code=1) == "disk_full"


# --- many ranks in one file ---

FORMS = ("[rank{r}]: ", "[default{r}]:", "{r}: ", "{r}/8: ", "[1,{r}]<stderr>:", "[{r}]<stdout>:")
WATCHDOG = (
    "[E ProcessGroupNCCL.cpp:616] [Rank {r}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=8, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600010 milliseconds"
)
PEER = "RuntimeError: Connection closed by peer [10.0.0.{r}]"
RAISED = {KEY_ERROR: "code_error", GPU_OOM: "gpu_oom", "OSError: [Errno 5] no": "storage_io"}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("others", [WATCHDOG, PEER], ids=["timeout", "peer"])
@pytest.mark.parametrize("raised", RAISED, ids=RAISED.values())
def test_the_rank_that_failed_is_blamed_in_one_interleaved_file(
    form: str, others: str, raised: str
) -> None:
    lines = [f"{form.format(r=r)}step {n} loss 2.{n}" for n in range(30) for r in range(8)]
    lines += [form.format(r=5) + line for line in raised.splitlines()]
    for r in (0, 1, 2, 3, 4, 6, 7):
        lines.append(form.format(r=r) + others.format(r=r))
        lines += [form.format(r=r) + FRAME.format(n=n).strip() for n in range(90)]
    verdict = classify(case("\n".join(lines), exit_code=1))
    assert verdict.reason == RAISED[raised]
    assert verdict.lines[0].startswith("rank 5: ")


def test_steps_of_other_ranks_do_not_make_a_rank_go_on() -> None:
    log = f"[rank1]: {GPU_OOM}" + "".join(
        f"[rank{r}]: step {n} loss 2\n" for n in range(50, 56) for r in (0, 2, 3)
    )
    assert reason_of(log, exit_code=1) == "gpu_oom"


def test_a_list_with_numbers_is_not_a_file_of_many_ranks() -> None:
    rank = end(code=1, log="config:\n0: a\n1: b\n" + steps(0, 40) + KEY_ERROR)
    assert by_rank(rank) == (rank,)
    assert len(by_rank(end(code=1, log="0: a\n1: b\n0: c"))) == 2


def test_a_rank_with_a_last_word_has_its_log_to_itself() -> None:
    rank = end(code=1, log="[rank0]: a\n[rank1]: b\n", says=word("gpu_oom"))
    assert by_rank(rank) == (rank,)


@pytest.mark.parametrize(
    "ended_at",
    [
        "2026-01-01T00:00:01Z",
        "2026-01-01T02:00:01+02:00",
        "2026-01-01 00:00:01",
        "20260101T000001Z",
    ],
)
def test_the_time_of_an_end_is_read_in_any_iso_form(ended_at: str) -> None:
    ranks = [
        {
            "rank": 0,
            "exit_code": 1,
            "ended_at": "2026-01-01T00:05:00Z",
            "log_tail": "IndexError: 3",
        },
        {"rank": 7, "exit_code": 1, "ended_at": ended_at, "log_tail": "KeyError: 'x'"},
    ]
    assert classify(case(ranks=ranks)).lines[0].startswith("rank 7: ")


def test_a_rank_that_the_parent_ended_or_that_waited_is_not_blamed() -> None:
    ranks = (
        end(0, by=15, second=100, log=steps(0, 9)),
        end(1, by=6, second=101, log=WATCHDOG.format(r=1)),
        end(2, code=1, second=105, log=KEY_ERROR),
    )
    verdict = classify(evidence(*ranks))
    assert (verdict.reason, verdict.lines[0].partition(":")[0]) == ("code_error", "rank 2")


def test_a_retry_of_long_ago_makes_no_rank_a_victim() -> None:
    ranks = (
        end(0, code=1, second=100, log=f"Connection reset by peer\n{steps(0, 9)}{KEY_ERROR}"),
        end(1, code=1, second=101, log="RuntimeError: Connection closed by peer [10.0.0.1]"),
    )
    verdict = classify(evidence(*ranks))
    assert (verdict.reason, verdict.lines[0].partition(":")[0]) == ("code_error", "rank 0")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("WARNING -- the node n7 has been marked dead", "node_failure"),
        ("".join(f"step {n} loss {x}\n" for n, x in enumerate((2, 2, 5, 7, 9))), "loss_divergence"),
        ("step 7 loss 2.0", "hang"),  # nothing is known of it but that the others waited for it
    ],
)
def test_what_the_one_says_that_others_waited_for_counts_before_their_time_outs(
    said: str, reason: str
) -> None:
    waits = "\n".join(f"[rank{r}]: {WATCHDOG.format(r=r)}" for r in range(7))
    verdict = classify(case(f"{said}\n{waits}"))
    assert (verdict.reason, verdict.confidence) == (reason, LEANING)


# --- wrapped ---

CRASHED = "Traceback (most recent call last):\n  File \"a.py\", line 1\nKeyError: 'w'"
WRAPPED = {
    json.dumps({"level": "ERROR", "msg": "crashed", "exc_info": CRASHED}): "code_error",
    json.dumps({"level": "ERROR", "error": {"stack": CRASHED}}): "code_error",
    json.dumps({"event": "x", "exception": "OSError: [Errno 28] full"}): "disk_full",
    json.dumps({"class": "TypeError", "message": "f() takes 1"}): "code_error",
    json.dumps({"e": {"type": "TypeError", "message": "f() takes 1"}}, indent=2): "code_error",
    json.dumps({"level": "ERROR", "exc": CRASHED * 99 + "\n" + GPU_OOM})[:-9]: "gpu_oom",
    json.dumps({"level": "WARNING", "msg": "disk quota exceeded, retrying"}): "unknown",
    "RuntimeError: Caught KeyError in DataLoader worker process 0.": "code_error",
    "ray.exceptions.RayTaskError(ValueError): ray::step() (pid=7)": "code_error",
}


@pytest.mark.parametrize("log", WRAPPED)
def test_a_failure_is_taken_out_of_what_it_is_wrapped_in(log: str) -> None:
    assert reason_of(steps(0, 3) + log, exit_code=1) == WRAPPED[log]


def test_the_message_of_a_pod_alone_is_read() -> None:
    pod = {"message": "The node had condition: [DiskPressure]. "}
    assert classify(case(pod=pod)).reason == "disk_full"


def test_sigint_is_a_person_and_no_more_than_a_guess() -> None:
    verdict = classify(case(steps(0, 9), signal="SIGINT"))
    assert (verdict.reason, verdict.confidence) == ("user_cancelled", LEANING)


# --- guesses end with their clause ---

GUESSED = {
    "The worker may have been restarted. Cause: OSError: [Errno 28] No space left": "disk_full",
    "Save failed (e.g. the optimizer): OSError: [Errno 122] Disk quota exceeded": "disk_full",
    "write failed (consider adding a volume): [Errno 28] No space left on device": "disk_full",
    "Could a call before it have changed this? Maybe. CUDA out of memory": "gpu_oom",
    "this may be due to an earlier error; CUDA out of memory": "gpu_oom",
    "lost it. Possible causes: 1. CUDA out of memory 2. a segmentation fault": "unknown",
    "some possible reasons. (1) CUDA out of memory. (2) the OOM killer": "unknown",
}


@pytest.mark.parametrize("line", GUESSED)
def test_a_guess_ends_with_its_clause(line: str) -> None:
    assert reason_of(line, exit_code=1) == GUESSED[line]


# --- numbers over words ---

NUMBERS = {
    "launch failed: CUDA error 700": "native_crash",
    "cudaMalloc failed with error 2": "gpu_oom",
    "cudaGetDeviceCount(). Error 802: not ready": "dependency_mismatch",
    "hip error: status 209": "dependency_mismatch",
    "cuda call failed, error code 214": "gpu_hardware",
    "cudaErrorSystemDriverMismatch": "dependency_mismatch",
    "Error: could not persist the shard (os error 28)": "disk_full",
    "write: errno=5": "storage_io",
    "bash: /x: Keine Berechtigung": "permission_denied",
    "cp: /x: 设备上没有空间": "disk_full",
    "Resource exhausted: cannot allocate 2.0G of HBM": "gpu_oom",
    "rpc error: PERMISSION_DENIED: no": "permission_denied",
    "the run ended: INTERRUPTED_BY_NO_CAPACITY": "preempted",
    "reason: MAX_DURATION_EXCEEDED": "walltime_timeout",
    "death: AUTOSCALER_DRAIN_PREEMPTED": "preempted",
    "worker exit: NODE_OUT_OF_MEMORY": "host_oom",
    "Job attempt duration exceeded timeout": "walltime_timeout",
    "TERMINATED_BY_USER": "user_cancelled",
    "SecondaryStatus: MaxWaitTimeExceeded": "walltime_timeout",
}


@pytest.mark.parametrize("line", NUMBERS)
def test_numbers_and_published_names_tell_a_cause(line: str) -> None:
    assert reason_of(steps(0, 3) + line) == NUMBERS[line]


# --- another version is not a corrupt checkpoint ---

LOADS = {
    "_pickle.UnpicklingError: Weights only load failed: Unsupported global": "dependency_mismatch",
    "ValueError: unsupported pickle protocol: 9": "dependency_mismatch",
    "RuntimeError: the checkpoint was saved by a newer release": "dependency_mismatch",
    "RuntimeError: checkpoint format version 7 is not supported": "dependency_mismatch",
    "RuntimeError: weights shard 2: sha256 mismatch": "checkpoint_corrupt",
    "AssertionError: the mask has no tokens": "code_error",
    "RuntimeError: PytorchStreamReader failed reading zip archive": "checkpoint_corrupt",
    "OSError: Unable to load weights from the checkpoint": "unknown",  # no word of its bytes
}


@pytest.mark.parametrize("line", LOADS)
def test_only_bytes_make_a_corrupt_checkpoint(line: str) -> None:
    before = 'Traceback (most recent call last):\n  File "a.py", line 2\n    torch.load(path)\n'
    assert reason_of(before + line, exit_code=1) == LOADS[line]


# --- series ---


def losses(*values: float) -> str:
    return "".join(f"step {n} | loss {x}\n" for n, x in enumerate(values))


SERIES = {
    "a loss that left its range": (losses(2.1, 2.0, 1.9, 4.9, 7.0, 9.9), "loss_divergence"),
    "with names of its own": (
        "".join(f"{{'loss': {x}, 'epoch': {x}}}\n" for x in (1.4, 1.5, 5.8, 7.0, 10.0)),
        "loss_divergence",
    ),
    "a spike that went": (losses(2.1, 2.0, 9.9, 2.0, 1.9, 1.9), "unknown"),
    "a noisy one": (losses(2.1, 2.9, 2.0, 3.1, 2.2, 2.8, 2.1), "unknown"),
    "of validation": ("".join(f"val loss {x}\n" for x in (1, 1, 4, 4, 4)), "unknown"),
    "NaNs": ("Loss of layer 3 has NaNs\n", "nan_loss"),
    "by its type": ("pkg.NanGradientError: 7 values\n", "nan_loss"),
    "not finite": ("the loss is not finite\n", "nan_loss"),
    "finite": ("the loss is finite\n", "unknown"),
    "a step that stands still": (
        "step 9 loss 2.0\n" + "".join(f"2030-01-01 0{h}:00:00 alive\n" for h in range(5)),
        "hang",
    ),
    "the same step again": (
        "".join(f"2030-01-01T0{h}:00:00 step 9 waits\n" for h in range(5)),
        "hang",
    ),
    "a clock of minutes": (
        "step 9 loss 2.0\n" + "".join(f"2030-01-01 00:0{m}:00 alive\n" for m in range(5)),
        "unknown",
    ),
}


@pytest.mark.parametrize("name", SERIES)
def test_what_lines_tell_together(name: str) -> None:
    log, reason = SERIES[name]
    verdict = classify(case(log))
    assert verdict.reason == reason
    assert reason == "nan_loss" or verdict.confidence <= LEANING
    assert reason == "nan_loss" or reason_of(log, signal="SIGTERM") == "unknown"


# --- hardware ---

XID = "kernel: NVRM: Xid (PCI:0000:3b:00): 94, pid=7, Contained ECC error"
TALKS = "monitor: node n9 reports an uncorrectable ECC error"


def test_a_fault_in_a_log_counts_with_the_kernels_mark_until_steps_went_on() -> None:
    failed = classify(case(f"{steps(0, 9)}{XID}\n{KEY_ERROR}", exit_code=1))
    assert (failed.reason, failed.lines[0].partition(":")[0]) == ("gpu_hardware", "rank 0")
    assert reason_of(f"{steps(0, 9)}{XID}\n{steps(9, 9)}{KEY_ERROR}", exit_code=1) == "code_error"
    assert reason_of(f"{steps(0, 9)}{TALKS}\n{KEY_ERROR}", exit_code=1) == "code_error"
