"""Where one rank's seconds went since its first step, by its monotonic clock.

Every second counts once: a step's last from its data to its report, less what it stood still for a
save or an evaluation meanwhile. What the script does between a report and the next step's data is
nobody's. Counted in whole nanoseconds, which add up without a drift, and given in seconds to the
microsecond.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict

from tracks_dagster.track.bodies import TimeSpent


class TimeBook:
    """Takes in what a rank does, in order; `spent` is the sum so far. clock: monotonic nanoseconds."""

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._spent_ns = dict.fromkeys(asdict(TimeSpent()), 0)
        self._asked_ns = 0  # when the running step's data was asked for
        self._began_ns = 0  # when the running step began: its data had come
        self._away_ns = 0  # of the running step, that went to a save or an evaluation
        self._is_away = False

    @property
    def spent(self) -> TimeSpent:
        """What the steps that are done took, and what stood between them."""
        return TimeSpent(**self.seconds)

    @property
    def seconds(self) -> dict[str, float]:
        """The same by its names, for a line of the journal."""
        return {name: spent_ns // 1000 / 1e6 for name, spent_ns in self._spent_ns.items()}

    def data_asked(self) -> None:
        """Begin to wait for a step's data."""
        self._asked_ns = self._clock()

    def data_came(self) -> float:
        """Begin the step; return how long its data took."""
        self._began_ns = self._clock()
        self._away_ns = 0
        data_ns = self._began_ns - self._asked_ns
        self._spent_ns["data_s"] += data_ns
        return _seconds(data_ns)

    def stepped(self) -> float:
        """End the step; return how long it took, without its data."""
        step_ns = self._clock() - self._began_ns - self._away_ns
        self._spent_ns["steps_s"] += step_ns
        return _seconds(step_ns)

    def saving(self) -> AbstractContextManager[None]:
        """Training stands still for a save. One inside another counts once."""
        return self._away("saving_s")

    def evaluating(self) -> AbstractContextManager[None]:
        """Training stands still for an evaluation."""
        return self._away("eval_s")

    @contextmanager
    def _away(self, name: str) -> Iterator[None]:
        is_inner, began_ns = self._is_away, self._clock()
        self._is_away = True
        try:
            yield
        finally:  # a script may go on after an evaluation that failed
            self._is_away = is_inner
            if not is_inner:
                away_ns = self._clock() - began_ns
                self._spent_ns[name] += away_ns
                self._away_ns += away_ns


def _seconds(ns: int) -> float:
    return ns // 1000 / 1e6
