"""A rank's beat: where it stands, in a few bytes that outlive the process. Pure.

A rank writes it over the one before at every change of phase; whoever watches the gang reads it from
the file. Only whether it changes matters: a beat holds no time, so that no two clocks are compared.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

_FORMAT = struct.Struct("<QQddI")  # step, count, step_s_p99, may_take_s, phase; its crc32 follows
_CRC = struct.Struct("<I")
BEAT_BYTES = _FORMAT.size + _CRC.size


class Phase(Enum):
    """What a rank is doing; within a step in the order in which it comes to it."""

    STARTING = "starts and meets the other ranks"
    RESTORING = "restores"
    WAITING_FOR_DATA = "waits for data"
    COMPUTING = "computes"
    REPORTING = "waits for the other ranks' report"
    SAVING = "saves"
    EVALUATING = "evaluates"
    ENDING = "has done its last step and ends"


_PHASES = tuple(Phase)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """Where one rank stands. step: the one it is in; count: of its beats so far.

    step_s_p99: 99th percentile of its step times, 0.0 before the first was finished. may_take_s: how
    long the rank itself gives the phase before it goes on or fails, 0.0 where it gives no time.
    """

    rank: int
    phase: Phase
    step: int = 0
    count: int = 0
    step_s_p99: float = 0.0
    may_take_s: float = 0.0


def beat_file(work: Path, rank: int) -> Path:
    """Return where a rank's beats stand, below its gang's folder."""
    return work / "beats" / f"rank-{rank}"


def encode(
    phase: Phase, *, step: int, count: int, step_s_p99: float, may_take_s: float = 0.0
) -> bytes:
    """Return the bytes of a beat."""
    data = _FORMAT.pack(step, count, step_s_p99, may_take_s, _PHASES.index(phase))
    return data + _CRC.pack(zlib.crc32(data))


def decode(rank: int, data: bytes) -> Beat | None:
    """Return the beat, or None for bytes that are not (yet) a whole one."""
    if len(data) != BEAT_BYTES:
        return None
    body, crc = data[: _FORMAT.size], data[_FORMAT.size :]
    if _CRC.unpack(crc) != (zlib.crc32(body),):
        return None
    step, count, step_s_p99, may_take_s, number = _FORMAT.unpack(body)
    if number >= len(_PHASES):
        return None
    return Beat(
        rank=rank,
        phase=_PHASES[number],
        step=step,
        count=count,
        step_s_p99=step_s_p99,
        may_take_s=may_take_s,
    )
