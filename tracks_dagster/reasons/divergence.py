"""Detects a loss that leaves its recent range: a spike in one step, a divergence in several. Pure.

The measure is the modified z-score of Iglewicz and Hoaglin ("How to Detect and Handle Outliers",
1993): 0.6745 × (x - median) / MAD over a trailing window, with MAD the median of the absolute
deviations. Median and MAD do not move when a few of the losses are far out, mean and standard
deviation do. One-sided: a loss that falls is never an excursion. Example: a window of median 2.0 and
MAD 0.04, and a loss of 3.0: 0.6745 × 1.0 / 0.04 = 16.9.

What it does not see: a loss that creeps up so slowly that the window follows it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tracks_dagster.track.records import Json
from tracks_dagster.track.roles import DIVERGENCE_STEPS, DIVERGENCE_Z, SPIKE_Z

NORMAL_QUARTILE = 0.6745  # of the standard normal distribution: makes MAD / 0.6745 its deviation
WINDOW_STEPS = 64  # losses compared with
WINDOW_STEPS_MIN = 20  # with fewer nothing is judged
# The scale is never taken for less: a loss that hardly varies would make an alarm of every step.
SCALE_OF_MEDIAN_MIN = 0.02
SCALE_MIN = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What counts. spike_z, divergence_z: modified z-scores, 0 switches one off; steps: in a row."""

    spike_z: float = SPIKE_Z
    divergence_z: float = DIVERGENCE_Z
    divergence_steps: int = DIVERGENCE_STEPS


@dataclass(frozen=True, slots=True, kw_only=True)
class Spike:
    """The first step of an excursion whose loss is a spike. z: its modified z-score."""

    step: int
    loss: float
    z: float
    median: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Diverged:
    """So many steps in a row lie beyond the limit. onset_step: the first of them."""

    step: int
    onset_step: int
    loss: float
    z: float
    median: float


def limits_of(config: Mapping[str, Json]) -> Limits:
    """Return the limits of a run's config; the defaults where it names none."""
    return Limits(
        spike_z=float(config.get("spike_z", SPIKE_Z)),
        divergence_z=float(config.get("divergence_z", DIVERGENCE_Z)),
        divergence_steps=int(config.get("divergence_steps", DIVERGENCE_STEPS)),
    )


class LossWatch:
    """Takes in finite losses, step by step. Losses of an excursion never enter the window."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._in_order: deque[float] = deque()
        self._sorted: list[float] = []
        self._onset: int | None = None  # of the losses beyond divergence_z
        self._count = 0
        self._has_spiked = False  # in the current excursion
        on = [z for z in (limits.spike_z, limits.divergence_z) if z > 0]
        self._least_z = min(on) if on else 0.0

    @property
    def onset_step(self) -> int | None:
        """The first step of the current excursion, None without one."""
        return self._onset

    def restore(self, recent: Iterable[tuple[int, float]]) -> None:
        """Take in the losses of the steps before, as a checkpoint has them."""
        for step, loss in recent:
            self.take(step, loss)

    def take(self, step: int, loss: float) -> Spike | Diverged | None:
        """Take in the loss of the next step; return a spike or a divergence. A few microseconds."""
        limits = self._limits
        z, median = self._judge(loss)
        if not self._least_z or z < self._least_z:
            self._onset, self._count, self._has_spiked = None, 0, False
            self._add(loss)
            return None
        if limits.divergence_z and z >= limits.divergence_z:
            self._onset = step if self._onset is None else self._onset
            self._count += 1
        else:
            self._onset, self._count = None, 0
        if self._onset is not None and self._count >= limits.divergence_steps:
            return Diverged(step=step, onset_step=self._onset, loss=loss, z=z, median=median)
        if not limits.spike_z or z < limits.spike_z or self._has_spiked:
            return None
        self._has_spiked = True
        return Spike(step=step, loss=loss, z=z, median=median)

    def _judge(self, loss: float) -> tuple[float, float]:
        """Return the modified z-score of `loss` and the median; 0 where it is far from any limit."""
        count = len(self._sorted)
        if count < WINDOW_STEPS_MIN:
            return 0.0, 0.0
        median = (self._sorted[(count - 1) // 2] + self._sorted[count // 2]) / 2
        least = max(SCALE_OF_MEDIAN_MIN * abs(median), SCALE_MIN)
        above = loss - median
        if above < self._least_z * least:
            return 0.0, median  # most steps end here: the scale is never less than `least`
        return above / max(least, _mad(self._sorted, median) / NORMAL_QUARTILE), median

    def _add(self, loss: float) -> None:
        self._in_order.append(loss)
        insort(self._sorted, loss)
        if len(self._in_order) > WINDOW_STEPS:
            del self._sorted[bisect_left(self._sorted, self._in_order.popleft())]


def _mad(ordered: list[float], median: float) -> float:
    """Return the median absolute deviation of sorted values: their distances, nearest first."""
    above = bisect_left(ordered, median)
    below = above - 1
    distance = 0.0
    for _ in range(len(ordered) // 2 + 1):
        down = median - ordered[below] if below >= 0 else float("inf")
        up = ordered[above] - median if above < len(ordered) else float("inf")
        if down < up:
            distance, below = down, below - 1
        else:
            distance, above = up, above + 1
    return distance
