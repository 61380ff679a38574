"""Writes a rank's beats: one small file with its phase and step, read by who watches the gang.

A beat is one write of a few bytes over the one before, in the kernel at once; it costs about two
microseconds, so a loop can afford several a step. A disk that takes no beat ends no training: then
the file goes, because an old beat would read as a hang.
"""

from __future__ import annotations

import os
import sys
from bisect import bisect_left, insort
from collections import deque
from contextlib import suppress
from pathlib import Path

from tracks_dagster.reasons.hangs import Phase, beat_file, encode_beat

TIMES_MAX = 512  # step times that the percentile is taken of


class Pulse:
    """One rank's beats in `work`. A new one continues in the same file."""

    def __init__(self, work: Path, rank: int) -> None:
        self._path = beat_file(work, rank)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file: int | None = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644)
        self._count = 0
        self._times = StepTimes()

    def beat(self, phase: Phase, step: int, *, may_take_s: float = 0.0) -> None:
        """Write that this rank has come to `phase` of `step`; may_take_s: as in `Beat`."""
        if self._file is None:
            return
        self._count += 1
        p99 = self._times.percentile_99
        data = encode_beat(
            phase, step=step, count=self._count, step_s_p99=p99, may_take_s=may_take_s
        )
        try:
            os.pwrite(self._file, data, 0)
        except OSError as error:
            self._give_up(error)

    def finished(self, step_s: float) -> None:
        """Take in how long a step took, its data and its exchange included; writes nothing."""
        self._times.take(step_s)

    def close(self) -> None:
        """Beat no more; the last one stays readable. What comes later is not a beat and no error."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _give_up(self, error: OSError) -> None:
        """Leave no beat: who watches takes the rank for one that starts, and is patient with it."""
        self.close()
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
        with suppress(OSError):
            print(f"cannot beat in {self._path}: {error}", file=sys.stderr, flush=True)


class StepTimes:
    """The newest step times and their 99th percentile."""

    def __init__(self) -> None:
        self._in_order: deque[float] = deque()
        self._sorted: list[float] = []
        self.percentile_99 = 0.0  # nearest rank, 0.0 before the first step: of 512 times the 507th

    def take(self, seconds: float) -> None:
        """Take in the time of a step."""
        self._in_order.append(seconds)
        insort(self._sorted, seconds)
        if len(self._in_order) > TIMES_MAX:
            del self._sorted[bisect_left(self._sorted, self._in_order.popleft())]
        self.percentile_99 = self._sorted[-(-99 * len(self._sorted) // 100) - 1]
