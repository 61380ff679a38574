"""When a checkpoint is due: every N steps or T seconds, on SIGTERM, on demand, at the end.

And before a time limit whose notice may be too short for one: SIGTERM's would be cut off.

The ranks must agree, so each gives what it knows (`asked`) and all choose by the sums.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any

from tracks_dagster.track.bodies import CheckpointCadence
from tracks_dagster.training.environment import AttemptPlace

NOTICE_EARLY_S = 60.0  # sbatch --signal: it may be sent so much earlier than asked for
SAVE_FACTOR = 2.0  # of the slowest save so far: what the next one is given


def time_left_s(place: AttemptPlace) -> float | None:
    """Seconds until the gang's time limit, by this node's clock; None where no limit is known."""
    return None if place.ends_at_s is None else max(0.0, place.ends_at_s - time.time())


class StopSignal:
    """While its `with` lasts, SIGTERM sets `received` and SIGUSR1 `save_asked`; neither ends it.

    SIGUSR1 ends no process afterwards either: who asks for a save cannot know that the last step is
    done. Only the main thread may handle signals: elsewhere both stay False.
    """

    def __init__(self) -> None:
        self.received = False
        self.save_asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGUSR1):
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, before in self._before.items():
            is_deadly = number == signal.SIGUSR1 and before == signal.SIG_DFL
            signal.signal(number, signal.SIG_IGN if is_deadly else before)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM:
            self.received = True
        else:
            self.save_asked = True


class Triggers:
    """One rank's reasons to save. is_clock: one rank's clock decides for all; place: for its limit."""

    def __init__(
        self, cadence: CheckpointCadence, stop: StopSignal, place: AttemptPlace, *, is_clock: bool
    ) -> None:
        self._place = place
        self._is_saved_for_limit = False
        self._cadence = cadence
        self._stop = stop
        self._is_clock = is_clock
        self._is_asked = False
        self._saved_at = time.monotonic()  # the last save tried

    def ask(self) -> None:
        """Ask for a checkpoint at the end of the running step."""
        self._is_asked = True

    def asked(self, slowest_s: float) -> tuple[bool, bool, bool]:
        """Return whether this rank was asked to stop, wants to save, and finds that it is time.

        slowest_s: the longest that a save of this launch took to its commit; 0 before the first.
        """
        every_s = self._cadence.every_s
        waited_s = time.monotonic() - self._saved_at
        is_time = every_s is not None and waited_s >= every_s
        if not self._is_saved_for_limit and self._is_limit_near(slowest_s):
            is_time = self._is_saved_for_limit = True
        is_asked = self._is_asked or self._stop.save_asked
        return self._stop.received, is_asked, self._is_clock and is_time

    def _is_limit_near(self, slowest_s: float) -> bool:
        """Whether it is time for a save that is committed before SIGTERM comes, where one that begins
        then might not be: saves are slow for the notice, or nobody knows yet."""
        left_s, notice_s = time_left_s(self._place), self._place.notice_s
        if left_s is None or notice_s is None:
            return False
        takes_s = SAVE_FACTOR * slowest_s
        if 0.0 < takes_s <= notice_s:
            return False
        return left_s <= NOTICE_EARLY_S + notice_s + max(notice_s, takes_s)

    def choose(
        self, step: int, asked: Sequence[float], *, is_last: bool, since: int | None = None
    ) -> str | None:
        """Return why a checkpoint of `step` is due, or None; of several reasons the firmest.

        asked: the sums of `asked` over all ranks. since: the step asked about before, where that is
        not the one before `step`.
        """
        stop, wish, is_time = asked
        every_steps = self._cadence.every_steps
        if is_last:
            return "final"
        if stop:
            return "sigterm"
        before = step - 1 if since is None else since
        if every_steps is not None and step // every_steps > before // every_steps:
            return "interval"
        if wish:
            return "demand"
        return "time" if is_time else None

    def saved(self) -> None:
        """Count from now on: a save was tried, whatever came of it."""
        self._saved_at = time.monotonic()
        self._is_asked = self._stop.save_asked = False
