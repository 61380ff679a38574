"""Runs as lines over parallel axes: one for each key of their configs, the last for what came of it.

No ids and no inline styles, as all pictures of the board. A line is a link with its run's words as its
title, so that it needs no script.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from statistics import quantiles

from tracks_dagster.review.effects.pages.charts import log_ticks, tick_text, ticks
from tracks_dagster.studies.space import CHOICE, INT, LOGUNIFORM, UNIFORM, Param
from tracks_dagster.track.records import Json

AXES_MAX = 10  # keys that are drawn
WIDTH, HEIGHT = 1240, 300  # of a picture over the page, in units of its text
LEFT, RIGHT, TOP, BOTTOM = 24, 96, 34, 30
TICKS = 4
NAME_CHARACTERS_MAX, LABEL_CHARACTERS_MAX = 17, 12
BEYOND = 3.0  # times the range of the middle half, from which on a value is at the end of its axis
ENOUGH = 4  # values that a middle half is taken of
DRAWN_MAX = 1e300  # the size of a number; the range of two larger ones may not be finite
MAGNITUDES = 10.0  # between the least and the largest positive value: from here on their logarithms


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis. ticks: where, from 0 at the bottom to 1, and what is written there; has_none: a place
    below it is for lines without a value."""

    name: str
    ticks: tuple[tuple[float, str], ...]
    has_none: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One run, or trial. shares: where it crosses each axis, None for the place of no value; a line
    shorter than the axes ends there. css: of its colour."""

    title: str
    address: str
    css: str
    shares: tuple[float | None, ...]


def parallel(axes: Sequence[Axis], lines: Sequence[Line], *, name: str, width: int = WIDTH) -> str:
    """Return the picture, later lines above the earlier; an empty text without an axis or a line."""
    if not axes or not lines:
        return ""
    gap = (width - LEFT - RIGHT) / max(1, len(axes) - 1)
    places = [round(LEFT + gap * number) for number in range(len(axes))]
    parts = [
        f'<svg class="parallel" viewBox="0 0 {width} {HEIGHT}" role="group" '
        f'aria-label="{escape(name)}">'
    ]
    parts += [_line(each, places) for each in lines]
    for axis, x in zip(axes, places, strict=True):
        parts += _axis(axis, x)
    return "\n".join([*parts, "</svg>"])


def _line(line: Line, places: Sequence[int]) -> str:
    points = [f"{x} {_y(share)}" for x, share in zip(places, line.shares, strict=False)]
    path = f"M{'L'.join(points)}" if len(points) > 1 else f"M{points[0]}h8"
    return (
        f'<a href="{escape(line.address)}" tabindex="-1"><title>{escape(line.title)}</title>'
        f'<path class="{line.css}" d="{path}"/></a>'
    )


def _axis(axis: Axis, x: int) -> Iterator[str]:
    yield f'<line class="axis" x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
    anchor = "" if x == LEFT else ' class="middle"'
    yield (
        f'<text{anchor} x="{x if anchor else 2}" y="14">{escape(_cut(axis.name, NAME_CHARACTERS_MAX))}'
        f"<title>{escape(axis.name)}</title></text>"
    )
    for share, text in axis.ticks:
        label = escape(_cut(text, LABEL_CHARACTERS_MAX))
        yield f'<text class="tick" x="{x + 5}" y="{_y(share) + 4}">{label}</text>'
    if axis.has_none:
        yield f'<text class="tick" x="{x + 5}" y="{_y(None) + 4}">none</text>'


def _y(share: float | None) -> int:
    if share is None:
        return HEIGHT - BOTTOM + 20
    return round(HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


# --- where a value lies on its axis ---------------------------------------------------------------


def seen_as(values: Sequence[Json]) -> Param:
    """Return how a key is laid out of which only these values are known, one at least."""
    numbers = [
        each for each in values if isinstance(each, int | float) and not isinstance(each, bool)
    ]
    if len(numbers) < len(values) or max(map(abs, numbers)) > DRAWN_MAX:
        several = {repr(each): each for each in values}
        return Param(kind=CHOICE, values=tuple(several[name] for name in sorted(several)))
    low, high = min(numbers), max(numbers)
    if low > 0 and high >= MAGNITUDES * low:
        return Param(kind=LOGUNIFORM, low=low, high=high)
    kind = INT if all(isinstance(each, int) for each in numbers) else UNIFORM
    return Param(kind=kind, low=low, high=high)


def axis_of(name: str, param: Param, *, has_none: bool) -> Axis:
    """Return the axis of a key of the space."""
    if param.kind == CHOICE:
        count = len(param.values)
        every = math.ceil(count / 12)
        shown = [(share_of(param, v), _text(v)) for v in param.values[::every]]
        return Axis(name=name, ticks=tuple(shown), has_none=has_none)
    low, high = param.low, param.high
    if param.kind == INT and high - low <= 8:
        found = [(float(v), f"{v}") for v in range(int(low), int(high) + 1)]
    else:
        found = _ticks(low, high, is_log=param.kind == LOGUNIFORM)
    return Axis(
        name=name,
        ticks=tuple((share_of(param, value), text) for value, text in found),
        has_none=has_none,
    )


def share_of(param: Param, value: Json) -> float:
    """Return where a value of a key lies, 0 to 1; one outside of the range at its end."""
    if param.kind == CHOICE:
        places = [repr(each) for each in param.values]
        at = places.index(repr(value)) if repr(value) in places else 0
        return (at + 0.5) / len(places)
    low, high = param.low, param.high
    if param.kind == LOGUNIFORM:
        low, high, value = math.log(low), math.log(high), math.log(max(value, low))
    return 0.5 if high <= low else min(1.0, max(0.0, (value - low) / (high - low)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """From which value to which an axis goes; what lies beyond is at its end."""

    low: float
    high: float

    def share(self, value: float) -> float:
        """Return where a value lies, 0 to 1."""
        if self.high <= self.low:
            return 0.5
        return min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))

    def has(self, value: float) -> bool:
        """Whether a value is not beyond it."""
        return self.low <= value <= self.high

    def axis(self, name: str) -> Axis:
        """Return the axis of it."""
        found = _ticks(self.low, self.high, is_log=False)
        return Axis(name=name, ticks=tuple((self.share(v), text) for v, text in found))


def scale_of(values: Sequence[float]) -> Scale:
    """Return the scale of some values, of which those that lie far from the middle half are beyond."""
    low, high = min(values), max(values)
    if len(values) >= ENOUGH:
        first, _, third = quantiles(values, n=4, method="inclusive")
        room = BEYOND * (third - first)
        near = [each for each in values if first - room <= each <= third + room]
        low, high = min(near, default=low), max(near, default=high)
    return Scale(low=low, high=high)


def _ticks(low: float, high: float, *, is_log: bool) -> list[tuple[float, str]]:
    if high <= low:
        return [(low, f"{low:.4g}")]
    found = (log_ticks if is_log else ticks)(low, high, TICKS)
    inside = [each for each in found if low <= each <= high]
    return [(each, f"{each:.3g}" if is_log else tick_text(each, low, high)) for each in inside]


def _text(value: Json) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
