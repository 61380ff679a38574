"""Words of Slurm's own tables that all who read them share: states, times, exit codes, hosts. Pure.

Read with 22.05: `squeue`, `sacct` and `scontrol` write them alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo

HOSTS_MAX = 20_000  # of one list of hosts
NO_TIMES = ("", "None", "Unknown", "N/A", "NONE")
# A job in one of these states goes on, or may.
UNTIL_THE_END = frozenset(
    {"PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "RESIZING"}
    | {"STAGE_OUT", "SIGNALING", "STOPPED", "REQUEUE_HOLD", "SPECIAL_EXIT"}
)

_GPUS = re.compile(r"gres/gpu(?::([^=,]+))?=(\d+)|\bgpu(?::([^:,()]+))?:(\d+)")
_EPOCH = re.compile(r"\d{9,11}")
_HOSTS = re.compile(r"((?:[^,\[\]]|\[[^\]]*\])+)")
_RANGES = re.compile(r"\[([^\]]*)\]")


def time_in(text: str, zone: tzinfo) -> datetime | None:
    """Return a time, aware; None where there is none yet. zone: of a time that names none.

    Raises ValueError for what is not a time.
    """
    if text in NO_TIMES:
        return None
    if _EPOCH.fullmatch(text):  # SLURM_TIME_FORMAT=%s
        return datetime.fromtimestamp(int(text), UTC)
    at = datetime.fromisoformat(text)
    return at if at.tzinfo is not None else at.replace(tzinfo=zone)


def exit_in(text: str) -> tuple[int | None, int | None]:
    """Return the exit code and the signal of `CODE:SIGNAL`; one of the two at most."""
    code, _, by_signal = text.partition(":")
    if by_signal.isdecimal() and 0 < int(by_signal) < 65:
        return None, int(by_signal)
    return (int(code), None) if code.isdecimal() and int(code) < 256 else (None, None)


def gpus_in(tres: str) -> tuple[int, str]:
    """Return how many GPUs a list of TRES has, and of which class; 0 and "" of one without."""
    found = [(m[1] or m[3] or "gpu", int(m[2] or m[4])) for m in _GPUS.finditer(tres)]
    if not found:
        return 0, ""
    typed = [each for each in found if each[0] != "gpu"]
    count = sum(n for _, n in typed) if typed else max(n for _, n in found)
    return (count, typed[0][0] if typed else "gpu") if count else (0, "")


def hosts(text: str) -> tuple[str, ...]:
    """Return the hosts of a list as Slurm writes it: `gpu[1,39],node[007-009]`, each once.

    Raises ValueError for one that is cut, or names more than HOSTS_MAX.
    """
    found: dict[str, None] = {}
    if text.count("[") != text.count("]"):
        raise ValueError(f"the list of hosts {text[:60]!r} is cut")
    for pattern in _HOSTS.findall(text):
        for host in _expanded(pattern.strip()):
            found[host] = None
            if len(found) > HOSTS_MAX:
                raise ValueError(f"the list of hosts {text[:60]!r} names more than {HOSTS_MAX}")
    return tuple(found)


def _expanded(pattern: str) -> Iterator[str]:
    match = _RANGES.search(pattern)
    if match is None:
        if pattern:
            yield pattern
        return
    before, after = pattern[: match.start()], pattern[match.end() :]
    for part in match[1].split(","):
        low, dash, high = part.strip().partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()):
            raise ValueError(f"{pattern[:60]!r} is not a list of hosts")
        last = int(high) if dash else int(low)
        if last - int(low) > HOSTS_MAX:
            raise ValueError(f"{pattern[:60]!r} names more than {HOSTS_MAX} hosts")
        for number in range(int(low), last + 1):
            yield from _expanded(f"{before}{number:0{len(low)}d}{after}")
