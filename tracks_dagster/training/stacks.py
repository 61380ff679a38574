"""Lets this rank write down where all its threads stand, whatever it hangs in.

Python's faulthandler does it in C, inside the signal's handler: a rank that is stuck in native code
dumps as well. Only a process that is stopped, or in an uninterruptible wait of the kernel, cannot.
"""

from __future__ import annotations

import faulthandler
import sys
from pathlib import Path

from tracks_dagster.attempts.stack_files import DUMP_SIGNAL, stack_file


def enable_dumps(work: Path, rank: int) -> None:
    """Dump on `DUMP_SIGNAL` to the rank's file, and on a crash of native code to its log."""
    path = stack_file(work, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".new")
    file = scratch.open("w", encoding="utf-8")  # faulthandler keeps it open
    faulthandler.register(DUMP_SIGNAL, file=file, all_threads=True, chain=False)
    faulthandler.enable(file=sys.stderr, all_threads=True)
    scratch.replace(path)  # only now may anybody signal: the default would end the process
