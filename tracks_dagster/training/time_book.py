"""Where one rank's seconds went since its first step, by its monotonic clock.

Every second counts once: a step's last from its data to its report, less what it stood still for a
save or an evaluation meanwhile. What the script does between a report and the next step's data is
nobody's. Two readings of the clock a phase: about a microsecond.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict

from tracks_dagster.core.bodies import TimeSpent


class TimeBook:
    """Takes in what a rank does, in order; `spent` is the sum so far. clock: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._spent = asdict(TimeSpent())
        self._asked_at = 0.0  # for the running step's data
        self._began_at = 0.0  # of the running step, once its data had come
        self._away_s = 0.0  # of the running step, that went to a save or an evaluation
        self._is_away = False

    @property
    def spent(self) -> TimeSpent:
        """What the steps that are done took, and what stood between them."""
        return TimeSpent(**{name: round(seconds, 6) for name, seconds in self._spent.items()})

    def data_asked(self) -> None:
        """Begin to wait for a step's data."""
        self._asked_at = self._clock()

    def data_came(self) -> float:
        """Begin the step; return how long its data took."""
        self._began_at = self._clock()
        self._away_s = 0.0
        data_s = self._began_at - self._asked_at
        self._spent["data_s"] += data_s
        return data_s

    def stepped(self) -> float:
        """End the step; return how long it took, without its data."""
        step_s = self._clock() - self._began_at - self._away_s
        self._spent["steps_s"] += step_s
        return step_s

    def saving(self) -> AbstractContextManager[None]:
        """Training stands still for a save. One inside another counts once."""
        return self._away("saving_s")

    def evaluating(self) -> AbstractContextManager[None]:
        """Training stands still for an evaluation."""
        return self._away("eval_s")

    @contextmanager
    def _away(self, name: str) -> Iterator[None]:
        is_inner, began_at = self._is_away, self._clock()
        self._is_away = True
        try:
            yield
        finally:  # a script may go on after an evaluation that failed
            self._is_away = is_inner
            if not is_inner:
                away_s = self._clock() - began_at
                self._spent[name] += away_s
                self._away_s += away_s
