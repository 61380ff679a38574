"""Work in a child process, which can be killed when its time or its memory is over.

For what cannot be stopped from within: one call of a database's own code, computed in another language.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tracks_dagster.track.errors import InvalidInput, TracksError

T = TypeVar("T")
LOOK_EVERY_S = 0.05
READ_BYTES = 1024 * 1024  # at a time
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def in_child(work: Callable[[], T], what: str, *, seconds_max: float, bytes_max: int) -> T:
    """Return what `work` returns, computed in a fork of this process; its TracksErrors are raised.

    what: the sentence's begin, as "The query". Raises InvalidInput when it took longer, or more memory
    than this process has now (which is seen on Linux only), or the child ended by itself.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    output, into = os.pipe()
    child = os.fork()
    if child == 0:
        _answer(work, into)
    os.close(into)
    try:
        data = _read(output, child, what, time.monotonic() + seconds_max, seconds_max, bytes_max)
    finally:
        os.close(output)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if not data:
        raise InvalidInput(f"{what} ended its process, perhaps for want of memory; ask for less.")
    answer: Any = pickle.loads(data)
    if isinstance(answer, TracksError):
        raise answer
    found: T = answer[0]
    return found


def _answer(work: Callable[[], object], into: int) -> None:
    """Be the child: write what came of the work, and end."""
    try:
        with open(into, "wb") as file:
            try:
                answer: object = (work(),)
            except TracksError as error:
                answer = error
            except MemoryError:
                return
            pickle.dump(answer, file)
    finally:
        os._exit(0)


def _read(
    output: int, child: int, what: str, give_up_at: float, seconds_max: float, bytes_max: int
) -> bytes:
    found = bytearray()
    inherited_bytes = _memory_bytes(os.getpid())  # a fork begins with its parent's memory
    while True:
        if select.select([output], [], [], LOOK_EVERY_S)[0]:
            data = os.read(output, READ_BYTES)
            if not data:
                return bytes(found)
            found += data
        if time.monotonic() > give_up_at:
            raise InvalidInput(f"{what} took longer than {seconds_max:g} s; ask for less at once.")
        if _memory_bytes(child) - inherited_bytes > bytes_max:
            raise InvalidInput(
                f"{what} took more than {bytes_max // 2**20} MiB of memory; ask for less at once."
            )


def _memory_bytes(pid: int) -> int:
    """Return what a process holds in memory; 0 where nobody can tell. See proc_pid_statm(5)."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0
