"""Which lines of a log are of an earlier start: requeued jobs and elastic gangs append to one file.

What ended an earlier start is over: it says nothing of the end that is asked about.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# What a program, an elastic agent or Slurm says when it starts again.
_STARTED_AGAIN = re.compile(
    r"={2,} ?(attempt|restart) #?\d+\b|will restart worker group|\brestart count\b"
    r"|(?<!be )\bresum(ing|ed)\b (training |run )?(from|at) (the )?(last |latest )?"
    r"(step|epoch|iteration|checkpoint|global_step|/|\w+://)"
    r"|(?<!be )\brestor(ing|ed)\b .{0,60}\bfrom\b .{0,60}(checkpoint|ckpt|step)"
    r"|job \d+ has been allocated resources",
    re.IGNORECASE,
)
_PROGRESS = re.compile(
    r"\b(step|iter|iteration|epoch|batch|global_step)s?\b\W{0,3}\d+|\d{1,3}%\|", re.IGNORECASE
)
_GOES_ON_LINES = 10  # a process that is being ended may still tell of a few steps


def starts_again(lines: Sequence[str]) -> int:
    """Return where the last start begins, 0 where none is told of."""
    return max((n for n, line in enumerate(lines) if _STARTED_AGAIN.search(line)), default=0)


def works_again(lines: Sequence[str]) -> int:
    """Return where the last start begins that got as far as a step, 0 where none did.

    A start that fails before its first step often fails of what ended the one before.
    """
    steps = [n for n, line in enumerate(lines) if _PROGRESS.search(line)]
    if not steps:
        return 0
    return starts_again(lines[: steps[-1]])


def goes_on(lines: Sequence[str]) -> bool:
    """Whether lines tell of more steps than a process does that is being ended."""
    return sum(_PROGRESS.search(line) is not None for line in lines) > _GOES_ON_LINES
