"""Stack dumps of the ranks on this machine: a signal asks for them, and each rank writes its own."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tracks_dagster.processes.process import Process, is_stopped
from tracks_dagster.reasons.hangs import StackDump
from tracks_dagster.track.text.redact import Redact

DUMP_SIGNAL = signal.SIGUSR2
DUMP_S_MAX = 5.0  # for all ranks together: they dump in milliseconds, or never
SETTLED_S = 0.2  # a dump that has not grown for so long is whole
POLL_S = 0.02
DUMP_BYTES_MAX = 256 * 1024
GONE = "its process is gone"


def dump_stacks(
    folder: Path, ranks: Mapping[int, Process], *, clean: Redact
) -> tuple[StackDump, ...]:
    """Return the dump of every rank, or why there is none. Harmless to a rank that runs."""
    sizes: dict[int, int] = {}
    problems: dict[int, str] = {}
    for rank, process in ranks.items():
        problems[rank] = _why_not(folder, rank, process)
        if problems[rank]:
            continue
        size = stack_file(folder, rank).stat().st_size
        try:
            os.kill(process.pid, DUMP_SIGNAL)
        except ProcessLookupError:  # the stacks of the others matter all the more
            problems[rank] = GONE
        else:
            sizes[rank] = size
    _wait_for_answers(folder, sizes)
    found = []
    for rank in ranks:
        text = clean(_answer(folder, rank, sizes[rank])) if rank in sizes else ""
        late = f"it did not answer within {DUMP_S_MAX:g} s (an uninterruptible wait of the kernel?)"
        problem = "" if text else problems[rank] or late
        found.append(StackDump(rank=rank, text=text, problem=problem))
    return tuple(found)


def _why_not(folder: Path, rank: int, process: Process) -> str:
    if not process.lives:
        return GONE
    if is_stopped(process.pid):
        return "its process is stopped by a signal (SIGSTOP, a debugger) and runs no code"
    if not stack_file(folder, rank).exists():
        return "it had not come to its first line of ours, or its script never joined"
    if not process.catches(DUMP_SIGNAL):
        return "it takes no dump any more, and the signal would end it"
    return ""


def _wait_for_answers(folder: Path, sizes: Mapping[int, int]) -> None:
    """Return when every rank has answered and nothing has grown for a moment; bounded."""
    began = grown_at = time.monotonic()
    seen: list[int] = []
    while time.monotonic() - began < DUMP_S_MAX:
        now = [stack_file(folder, rank).stat().st_size for rank in sizes]
        if now != seen:
            seen, grown_at = now, time.monotonic()
        answered = all(size > before for size, before in zip(now, sizes.values(), strict=True))
        if answered and time.monotonic() - grown_at > SETTLED_S:
            return
        time.sleep(POLL_S)


def _answer(folder: Path, rank: int, offset: int) -> str:
    with stack_file(folder, rank).open("rb") as file:
        file.seek(offset)
        return file.read(DUMP_BYTES_MAX).decode("utf-8", errors="replace")


def enable_dumps(work: Path, rank: int) -> None:
    """Dump on `DUMP_SIGNAL` to the rank's file, and on a crash of native code to its log.

    Python's faulthandler does it in C, inside the signal's handler: a rank that is stuck in native code
    dumps as well. Only a process that is stopped, or in an uninterruptible wait of the kernel, cannot.
    """
    path = stack_file(work, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".new")
    file = scratch.open("w", encoding="utf-8")  # faulthandler keeps it open
    faulthandler.register(DUMP_SIGNAL, file=file, all_threads=True, chain=False)
    faulthandler.enable(file=sys.stderr, all_threads=True)
    scratch.replace(path)  # only now may anybody signal: the default would end the process


def stack_file(work: Path, rank: int) -> Path:
    """Return the file that a rank's dumps go to; there once the rank can dump."""
    return work / "stacks" / f"rank-{rank}.txt"
