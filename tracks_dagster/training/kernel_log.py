"""Lines of the kernel's log that tell of memory, devices and disks. Standard library only.

A machine is shared: a line that names a process of somebody else is left out. Reading may be
forbidden; then that is what is told.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection
from pathlib import Path

_LOG = Path("/dev/kmsg")
LINES_MAX = 20
RECORD_BYTES_MAX = 8192
READ_S_MAX = 1.0
SLACK_S = 2.0  # the kernel's clock of its log and the monotonic clock are not quite the same
_NOT_READABLE = "kernel log not readable"
_OF_INTEREST = re.compile(
    r"NVRM: Xid|SXid|\[Hardware Error\]|\bmce: |fallen off the bus|uncorrectable (ECC|NVLink)"
    r"|Out of memory: Kill|out of memory: Kill|oom-kill:|I/O error|segfault at",
    re.IGNORECASE,
)
_PID = re.compile(r"(?:Killed process |\bpid[=:] ?'?|\[)(\d+)\b")


def lines_since(began_s: float, pids: Collection[int]) -> list[str]:
    """Return the newest lines since `began_s` (monotonic) that name a process of `pids`, or none.

    A log that may not be read is told in one line.
    """
    try:
        descriptor = os.open(_LOG, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        return [f"{_NOT_READABLE}: {_LOG}: {error.strerror}"]
    try:
        found = [line for at_s, line in _records(descriptor) if at_s >= began_s - SLACK_S]
    finally:
        os.close(descriptor)
    return [line for line in found if _OF_INTEREST.search(line) and _is_ours(line, pids)][
        -LINES_MAX:
    ]


def is_unreadable(lines: Collection[str]) -> bool:
    """Whether that is what `lines_since` told."""
    return any(line.startswith(_NOT_READABLE) for line in lines)


def _records(descriptor: int) -> list[tuple[float, str]]:
    """Return (seconds since boot, text) of every record; see Documentation/ABI/testing/dev-kmsg."""
    records = []
    deadline = time.monotonic() + READ_S_MAX
    while time.monotonic() < deadline:
        try:
            record = os.read(descriptor, RECORD_BYTES_MAX)
        except BlockingIOError:  # read to the end
            break
        except OSError:  # EPIPE: overwritten while it was read; the next one follows
            continue
        head, _, text = record.decode("utf-8", errors="replace").partition(";")
        fields = head.split(",")
        if len(fields) > 2 and fields[2].isdigit():
            records.append((int(fields[2]) / 1e6, text.split("\n", 1)[0]))
    return records


def _is_ours(line: str, pids: Collection[int]) -> bool:
    named = {int(number) for number in _PID.findall(line)}
    return not named or bool(named & set(pids))
