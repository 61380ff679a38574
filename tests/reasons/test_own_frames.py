"""The user's own frame of a traceback, below which libraries raised."""

from __future__ import annotations

import pytest

from tracks_dagster.reasons.logs import cut_to, newest_own_frame

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
def test_the_newest_frame_that_is_no_librarys_is_found(library: str) -> None:
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
