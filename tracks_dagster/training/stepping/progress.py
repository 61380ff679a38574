"""How training has gone so far: the best value of one metric and the newest losses. A resume keeps it.

Rank 0 counts: the other ranks know the loss, not the script's own metrics.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from tracks_dagster.track.records import Json

RECENT_MAX = 64  # losses kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best value so far and the first step that had it."""

    value: float
    step: int


class Progress:
    """Takes in every step's metrics. metric, direction ("min" or "max"): of what is best."""

    def __init__(self, metric: str, direction: str) -> None:
        self.metric = metric
        self.direction = direction
        self.best: Best | None = None
        self._recent: deque[tuple[int, float]] = deque(maxlen=RECENT_MAX)

    @property
    def recent(self) -> tuple[tuple[int, float], ...]:
        """The newest (step, loss), oldest first."""
        return tuple(self._recent)

    def take(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take in the metrics of a finished step; an equal value is no better one."""
        self._recent.append((step, metrics["loss"]))
        value = metrics.get(self.metric, math.nan)
        if math.isfinite(value) and (self.best is None or self._is_better(value, self.best.value)):
            self.best = Best(value=value, step=step)

    def to_json(self) -> dict[str, Json]:
        """Return all of it, for a checkpoint."""
        return {
            "metric": self.metric,
            "direction": self.direction,
            "best": asdict(self.best) if self.best else None,
            "recent": [list(each) for each in self._recent],
        }

    def restore(self, stored: Mapping[str, Json]) -> None:
        """Take up where `to_json` was asked; the best of another metric does not count."""
        self._recent = deque(((step, loss) for step, loss in stored["recent"]), maxlen=RECENT_MAX)
        same = (stored["metric"], stored["direction"]) == (self.metric, self.direction)
        self.best = Best(**stored["best"]) if same and stored["best"] else None

    def _is_better(self, value: float, than: float) -> bool:
        return value < than if self.direction == "min" else value > than
