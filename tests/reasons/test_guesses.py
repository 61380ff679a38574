"""What a line only supposes decides nothing: alternatives, examples, conditions."""

from __future__ import annotations

import pytest

from tests.evidences import case
from tracks_dagster.reasons.classify import classify
from tracks_dagster.reasons.logs import without_guesses

SUPPOSED = (
    "the worker failed, or ran out of memory",
    "the pod was evicted or the node ran out of memory",
    "worker exited: it was killed by the kernel or it ran out of memory",
    "the task crashed, was preempted, or ran out of GPU memory",
    "the device ran out of memory or was preempted",
    "the actor ran out of memory or the node has died",
    "connection lost: the peer exited or there was no route to host",
    "the process might have run out of memory",
    "the worker could have been killed by the OOM killer",
    "killed, possibly due to CUDA out of memory",
    "the node is gone, probably because the instance was preempted",
    "a system call failed (e.g. No space left on device)",
    "it stops for many causes, such as CUDA out of memory",
    "If you see CUDA out of memory, lower the batch size",
    "when the node is out of memory the trainer stops",
    "there are some possible causes: CUDA out of memory, a segmentation fault",
)
HAPPENED = {
    "RuntimeError: CUDA out of memory. If you want to know more, read the manual": "gpu_oom",
    "FileNotFoundError: [Errno 2] No such file or directory: '/d/x'": "config_error",
    "ValueError: argument --lr is missing or invalid option --foo": "config_error",
    "OSError: cannot read or write '/d': [Errno 5] Input/output error": "storage_io",
    "OSError: [Errno 28] No space left on device or disk quota exceeded": "disk_full",
    "the file system is read or written no more: No space left on device": "disk_full",
    "RuntimeError: Loss is nan or inf, stopping": "nan_loss",
    "the checkpoint is truncated or corrupt": "checkpoint_corrupt",
}


@pytest.mark.parametrize("line", SUPPOSED)
@pytest.mark.parametrize("before", ["", "RuntimeError: ", "step 4 loss=1.9\n[rank3]: "])
def test_what_may_have_happened_is_no_cause(line: str, before: str) -> None:
    assert classify(case(before + line, exit_code=1)).reason == "unknown"


@pytest.mark.parametrize("line", HAPPENED)
def test_what_has_happened_is_read_beside_an_or_and_an_if(line: str) -> None:
    assert classify(case(line, exit_code=1)).reason == HAPPENED[line]


def test_a_line_ends_for_the_rules_where_it_begins_to_suppose() -> None:
    assert without_guesses("peer gone; this may be due to an OOM") == "peer gone; "
    assert without_guesses("nothing is supposed here") == "nothing is supposed here"
