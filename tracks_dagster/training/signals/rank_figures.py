"""What each rank tells the others of its last steps, in the sum that they exchange at a report anyway.

Every rank adds one number for each figure to the place that is its own, zeros to the others'; so all
know all, and rank 0 writes them down as one line. Nobody reads the journals of 64 ranks to find the
slow one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from tracks_dagster.track.records import Json

OVER_STEPS = 5  # that a line is of
RANKS_MAX = 1024  # of a larger gang nothing is written: a line would be above 50 KB
_OF_STEPS = ("step_s", "own_s", "data_s")
_OF_DEVICE = {"util": "util_percent", "rss_bytes": "rss_bytes", "device_bytes": "memory_bytes"}
NAMES = (*_OF_STEPS, *_OF_DEVICE)


class RankFigures:
    """One rank's figures of the steps that it has not reported yet."""

    def __init__(self, *, rank: int, world_size: int) -> None:
        self._rank = rank
        self._world_size = world_size
        self._steps: list[tuple[float | None, ...]] = []

    def take(self, *, step_s: float, own_s: float | None, data_s: float) -> None:
        """Take in a step that is done; every rank takes the same ones."""
        self._steps.append((step_s, own_s, data_s))

    def due(self, device: Mapping[str, Json]) -> list[float]:
        """Return what this rank adds to the next sum; nothing before OVER_STEPS steps.

        device: its newest `device` line. As long on every rank.
        """
        if len(self._steps) < OVER_STEPS:
            return []
        columns, self._steps = zip(*self._steps, strict=True), []
        if self._world_size > RANKS_MAX:
            return []
        own = [*map(_median, columns), *(_number(device.get(key)) for key in _OF_DEVICE.values())]
        figures = [0.0] * (len(NAMES) * self._world_size)
        figures[self._rank :: self._world_size] = own
        return figures

    def fields(self, sums: Sequence[float]) -> dict[str, Json]:
        """Return a `ranks` line's fields by what all ranks added; a figure of nobody is left out."""
        return dict(self._named(sums))

    def _named(self, sums: Sequence[float]) -> Iterator[tuple[str, Json]]:
        for index, name in enumerate(NAMES):
            values = sums[index * self._world_size : (index + 1) * self._world_size]
            known = [None if math.isnan(value) else value for value in values]
            if any(value is not None for value in known):
                yield name, [_whole(value) if name.endswith("_bytes") else value for value in known]


def _median(values: Sequence[float | None]) -> float:
    """Return the median of what is known; NaN where nothing is. Of an even count the upper one."""
    known = sorted(value for value in values if value is not None)
    return known[len(known) // 2] if known else math.nan


def _number(value: Json) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
