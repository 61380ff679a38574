"""What of a log counts: no line that only supposes, and the user's own frame of a traceback."""

from __future__ import annotations

import pytest

from tests.evidences import case
from tracks_dagster.reasons.classify import classify
from tracks_dagster.reasons.logs import cut_to, newest_own_frame, without_guesses

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
def test_what_may_have_happened_is_not_a_cause(line: str, before: str) -> None:
    assert classify(case(before + line, exit_code=1)).reason == "unknown"


@pytest.mark.parametrize("line", HAPPENED)
def test_what_has_happened_is_read_beside_an_or_and_an_if(line: str) -> None:
    assert classify(case(line, exit_code=1)).reason == HAPPENED[line]


def test_a_line_ends_for_the_rules_where_it_begins_to_suppose() -> None:
    assert without_guesses("peer gone; this may be due to an OOM") == "peer gone; "
    assert without_guesses("nothing is supposed here") == "nothing is supposed here"


# The user's own frame of a traceback, below which libraries raised.


HEAD = "Traceback (most recent call last):\n"
OWN = '  File "/work/r-1/a01/trainer.py", line 12, in <module>\n    loss.backward()\n    ^^^^^^\n'
TORCH = (
    '  File "/venv/lib/python3.11/site-packages/torch/_tensor.py", line 1, in backward\n    run()\n'
)
ERROR = "RuntimeError: element 0 of tensors does not require grad\n"


def shown(text: str) -> str:
    lines = text.splitlines()
    own = newest_own_frame(lines)
    return "" if own is None else "\n".join(lines[own.start : own.stop]) + "\n"


@pytest.mark.parametrize(
    "library",
    [
        TORCH,
        '  File "<frozen importlib._bootstrap>", line 1, in _call\n',
        '  File "/src/tracks_dagster/training/steps.py", line 9, in run\n    step()\n',
        '  File "/usr/lib/python3/dist-packages/numpy/core.py", line 9, in run\n    step()\n',
        '  File "/usr/lib/python3.11/threading.py", line 9, in run\n    step()\n',
    ],
)
def test_the_newest_frame_that_is_not_a_librarys_is_found(library: str) -> None:
    assert shown(HEAD + OWN + library * 9 + ERROR) == OWN
    assert shown(HEAD + library * 9 + ERROR) == ""


def test_a_traceback_that_is_cut_keeps_it() -> None:
    whole = HEAD + OWN + TORCH * 99 + ERROR
    cut = cut_to(whole, 800)
    assert len(cut) <= 800
    assert cut.startswith(f"{OWN}  …\n")
    assert cut.endswith(ERROR)
    assert cut_to(whole, len(whole)) == whole
    assert cut_to(HEAD + TORCH * 99 + OWN + ERROR, 300).endswith(OWN + ERROR)
    assert len(cut_to(HEAD + TORCH * 99 + ERROR, 300)) == 300
