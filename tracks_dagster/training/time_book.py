"""Where one rank's seconds went since its first step, by its monotonic clock.

Every second counts once: a step's last from its data to its report, less what it stood still for a
save or an evaluation meanwhile. What the script does between a report and the next step's data is
nobody's. Two readings of the clock a phase: about a microsecond.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tracks_dagster.core.bodies import TimeSpent


class TimeBook:
    """Takes in what a rank does, in order; `spent` is the sum so far. clock: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._steps_s = self._data_s = self._saving_s = self._eval_s = 0.0
        self._asked_at = 0.0  # for the running step's data
        self._began_at = 0.0  # of the running step, once its data had come
        self._away_s = 0.0  # of the running step, that went to a save or an evaluation
        self._is_away = False

    @property
    def spent(self) -> TimeSpent:
        """What the steps that are done took, and what stood between them."""
        return TimeSpent(
            steps_s=round(self._steps_s, 6),
            data_s=round(self._data_s, 6),
            saving_s=round(self._saving_s, 6),
            eval_s=round(self._eval_s, 6),
        )

    def data_asked(self) -> None:
        """Begin to wait for a step's data."""
        self._asked_at = self._clock()

    def data_came(self) -> float:
        """Begin the step; return how long its data took."""
        self._began_at = self._clock()
        self._away_s = 0.0
        data_s = self._began_at - self._asked_at
        self._data_s += data_s
        return data_s

    def stepped(self) -> float:
        """End the step; return how long it took, without its data."""
        step_s = self._clock() - self._began_at - self._away_s
        self._steps_s += step_s
        return step_s

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Training stands still for a save. One inside another counts once."""
        with self._away() as seconds:
            yield
        self._saving_s += seconds[0]

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Training stands still for an evaluation."""
        with self._away() as seconds:
            yield
        self._eval_s += seconds[0]

    @contextmanager
    def _away(self) -> Iterator[list[float]]:
        seconds, is_inner, began_at = [0.0], self._is_away, self._clock()
        self._is_away = True
        yield seconds  # an error ends the attempt: then nothing more is told
        self._is_away = is_inner
        if not is_inner:
            seconds[0] = self._clock() - began_at
            self._away_s += seconds[0]
