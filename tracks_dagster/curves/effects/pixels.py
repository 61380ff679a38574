"""Points of a curve as arrays, and fewer of them: what a picture of so many pixels shows.

Each pixel keeps its smallest and its largest value, so that no spike is lost, and the first of
those that are not finite. Doing so twice, part by part and then all of it, comes to the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tracks_dagster.curves.curve import Point
from tracks_dagster.stores.journal_tables import Array


@dataclass(frozen=True, slots=True)
class Pixels:
    """So many pixels from x0 on to x1."""

    x0: float
    x1: float
    count: int

    def of(self, x: Array) -> Array:
        """Return in which pixel each place lies."""
        import numpy as np

        width = (self.x1 - self.x0) / self.count or 1.0
        return np.clip((x - self.x0) / width, 0, self.count - 1).astype(np.int64)


def round_up(end: float) -> float:
    """Return the next number of two digits, 1234 → 1300: where the axis of a run that grows ends, so
    that for a while its pixels stay where they are."""
    if not end > 0:
        return end
    step = 10.0 ** (math.floor(math.log10(end)) - 1)
    return math.ceil(end / step) * step


class Points(NamedTuple):
    """Points as arrays."""

    step: Array
    x: Array
    value: Array
    at: Array

    def take(self, places: Array) -> Points:
        return Points(*(each[places] for each in self))


def fewer(points: Points, pixels: Pixels) -> Points:
    """Return of each pixel the smallest and the largest value and the first that is not a finite
    number, and the first and the last point of all."""
    import numpy as np

    count = len(points.step)
    if count <= 2 * pixels.count:
        return points
    pixel = pixels.of(points.x)
    begins = np.flatnonzero(np.append(True, pixel[1:] != pixel[:-1]))
    which = np.repeat(np.arange(len(begins)), np.diff(np.append(begins, count)))
    is_finite = np.isfinite(points.value)
    places = [[0, count - 1], _firsts(which, ~is_finite)]
    for smallest, filler in ((np.minimum, np.inf), (np.maximum, -np.inf)):
        values = np.where(is_finite, points.value, filler)
        best = smallest.reduceat(values, begins)
        places.append(_firsts(which, is_finite & (values == best[which])))
    return points.take(np.unique(np.concatenate(places)))


def _firsts(which: Array, is_one: Array) -> Array:
    """Return the first place of each pixel at which `is_one` holds."""
    import numpy as np

    places = np.flatnonzero(is_one)
    pixel = which[places]
    return places[np.append(True, pixel[1:] != pixel[:-1])] if len(places) else places


def joined(parts: Sequence[Points], *, is_once: bool) -> Points:
    """Return the points of all parts; is_once: by step, each with its later value."""
    import numpy as np

    points = Points(*(np.concatenate(each) for each in zip(*parts, strict=True)))
    order = in_order(points.step) if is_once else None
    return points if order is None else points.take(order)


def as_points(points: Points) -> tuple[Point, ...]:
    columns = (each.tolist() for each in points)
    return tuple(map(Point._make, zip(*columns, strict=True)))


def in_order(step: Array) -> Array | None:
    """Return the places of steps in their order, of one that is there twice the later; None: all."""
    import numpy as np

    if len(step) < 2 or bool((np.diff(step) > 0).all()):
        return None
    order = np.argsort(step, kind="stable")
    is_last = np.append(np.diff(step[order]) > 0, True)
    return order[is_last]
