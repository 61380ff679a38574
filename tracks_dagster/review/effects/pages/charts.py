"""Pictures of curves as SVG written by hand, which the report, the board and Dagster's pages share.

A page that must open without a network in ten years needs no chart library. Each picture is one `<svg>`
for a page with `palette.css` and `charts.css`; it has no ids and no inline styles, so that several fit
on a page whose policy forbids these. `image` makes one that needs no page. What was lost lies broad and
grey below what was kept; a value that is not a finite number is a gap, with a cross at the top.
"""

from __future__ import annotations

import math
import sys
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from html import escape
from pathlib import Path
from types import MappingProxyType

from tracks_dagster.curves.curve import (
    COMMIT,
    END,
    REMEDY,
    Curve,
    Mark,
    Point,
    Series,
    averaged,
    axis_range,
    points_of,
    smoothed,
)
from tracks_dagster.track.text.safe_text import visible

WIDTH, HEIGHT = 720, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 16, 26  # margins for the axes' numbers
LABELS = 22  # more at the top, for the marks' words, where a picture is wide
AXIS_NAME = 20  # more at the bottom, for the axis's name, where a picture is high
WIDE_MIN, HIGH_MIN = 600, 240
CHARACTER = 6.2  # the width of one, about
COLOUR_COUNT = 6  # classes a0 to a5, repeated
ROOM = 0.08  # above and below the values, of half of what they span
MARKS_MAX = 200  # of a kind, in one picture; neighbours that would lie on each other are one
APART = 2.0  # marks of a kind at least
GAPS_MAX = 100
ROUND_PARTS = 10  # about, of an axis or of a power of ten: its end may lie so much farther
ALMOST = 1e-9  # of a tick's step, by which sums of floats are off
SCALES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
TINY, HUGE = 1e-4, 1e15
LOG_FROM = 1e-200  # smaller ones have no logarithm that counts, with room below them


def colour(number: int) -> str:
    """Return the class of the colour of an attempt, or of the run or rank of that number, from 1."""
    return f"a{(number - 1) % COLOUR_COUNT}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How values are drawn. is_log: by their logarithm, where all of a picture's are above 0.

    smooth: over how many steps kept values are averaged, 0 for none; the values lie faint behind.
    is_growing: the axis ends at round values, so that most new points change nothing else of a picture.
    """

    is_log: bool = False
    smooth: int = 0
    is_growing: bool = False


PLAIN = Look()


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """The mean of several runs, and how far they lie apart. css: the class of its colour.

    mean, low, high: at the same places, by x; odd: values that are not finite numbers.
    """

    name: str
    css: str
    mean: Sequence[Point]
    low: Sequence[Point]
    high: Sequence[Point]
    odd: Sequence[Point] = ()


def curve_panel(
    curve: Curve,
    marks: Sequence[Mark] = (),
    *,
    x_label: str = "step",
    x_range: tuple[float, float] | None = None,
    width: int = WIDTH,
    height: int = HEIGHT,
    look: Look = PLAIN,
) -> str:
    """Return the picture of one metric; an empty text where nothing of it is finite.

    An attempt has a colour, of a metric by rank a rank. marks: what happened on the axis. x_range: that
    several pictures share.
    """
    frame = _frame(curve.series, marks, x_label, x_range, width, height, look)
    if frame is None:
        return ""
    lost = [series for series in curve.series if not series.is_kept]
    parts = [
        *_axes(frame, x_label),
        *_ends(frame, marks),
        *_lines(frame, _joined(curve, lost)),
        *_lines(frame, _kept(curve, look)),
        *_gaps(frame, curve.series),
        *_commits(frame, marks),
        *_remedies(frame, marks),
    ]
    return _svg(frame, _described(curve, x_label), parts)


def compare_panel(
    curves: Mapping[str, Curve],
    *,
    x_label: str = "step",
    x_range: tuple[float, float] | None = None,
    width: int = WIDTH,
    height: int = HEIGHT,
    look: Look = PLAIN,
    colours: Mapping[str, str] | None = None,
    bands: Mapping[str, Band] = MappingProxyType({}),
) -> str:
    """Return several runs' curves over each other, by what they are called; each has a colour.

    Only what was kept. An empty text where nothing of them is finite. colours: the class of each; None:
    by its place. bands: of runs whose own curves are not drawn, by what they are called.
    """
    kept = [series for curve in curves.values() for series in curve.kept]
    drawn = [*kept, *(_series(p) for each in bands.values() for p in (each.low, each.high))]
    frame = _frame(drawn, (), x_label, x_range, width, height, look)
    if frame is None:
        return ""
    parts = [*_axes(frame, x_label), *_areas(frame, bands)]
    for number, (label, curve) in enumerate(curves.items(), 1):
        own = colour(number) if colours is None else colours[label]
        line = _Line(f"line {own}", label, points_of(curve.kept))
        if look.smooth:
            parts += _lines(frame, [_raw(line)])
            line = replace(line, points=smoothed(line.points, look.smooth))
        parts += _lines(frame, [line])
    for label, band in bands.items():
        parts += _lines(frame, [_Line(f"line {band.css}", label, band.mean)])
    parts += _gaps(frame, [*kept, *(_series(band.odd) for band in bands.values())])
    both = [*(each.name for each in curves.values()), *(each.name for each in bands.values())]
    names = " and ".join(dict.fromkeys(both))
    return _svg(frame, f"{names} by {x_label} of {', '.join([*curves, *bands])}", parts)


def dots_panel(
    dots: Mapping[str, Sequence[Point]],
    lines: Mapping[str, tuple[str, Sequence[Point]]],
    *,
    name: str,
    x_label: str,
    width: int = WIDTH,
    height: int = HEIGHT,
) -> str:
    """Return points, by the class of their colour, and lines over them: title → class and points.

    Points of a class are one path, so that thousands are small. An empty text without a finite one.
    """
    everything = [*dots.values(), *(points for _, points in lines.values())]
    frame = _frame(map(_series, everything), (), x_label, None, width, height, PLAIN)
    if frame is None:
        return ""
    parts = [*_axes(frame, x_label)]
    for css, points in dots.items():
        places = (f"M{frame.x(p.x):.0f} {frame.y(p.value):.0f}h0" for p in points)
        parts.append(f'<path class="dots {css}" d="{"".join(places)}"/>')
    drawn = (_Line(f"line {css}", title, points) for title, (css, points) in lines.items())
    parts += _lines(frame, drawn)
    return _svg(frame, f"{name} by {x_label}", parts)


def image(svg: str) -> str:
    """Return a picture as a document of its own, with its colours, light and dark."""
    if not svg:
        return ""
    head, _, rest = svg.partition(">")
    box = head.partition('viewBox="0 0 ')[2].partition('"')[0]
    width, _, height = box.partition(" ")
    size = f'xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
    ground = f'<rect class="ground" width="{width}" height="{height}"/>'
    head = head.replace("<svg", f"<svg {size}", 1)
    return visible(f"{head}><style>{_style()}</style>{ground}{rest}")


def image_uri(svg: str) -> str:
    """Return `image` as a `data:` URI, for markdown; an empty text for an empty picture."""
    data = b64encode(image(svg).encode()).decode()
    return f"data:image/svg+xml;base64,{data}" if svg else ""


@lru_cache(maxsize=1)
def _style() -> str:
    here = Path(__file__).parent
    files = ("palette.css", "charts.css")
    return "".join((here / name).read_text(encoding="utf-8") for name in files)


# --- the frame --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """The values at the edges, and where these lie on the picture. is_log: by their logarithm."""

    x0: float
    x1: float
    y0: float
    y1: float
    width: int
    height: int
    top: int
    bottom: int
    is_log: bool = False

    @property
    def is_wide(self) -> bool:
        """Whether marks have room for words."""
        return self.width >= WIDE_MIN

    @property
    def left(self) -> int:
        """Where the values of x begin."""
        return LEFT

    @property
    def right(self) -> int:
        """Where they end."""
        return self.width - RIGHT

    def x(self, value: float) -> float:
        """Return where a value of x lies."""
        return self.left + (value - self.x0) / (self.x1 - self.x0) * (self.right - self.left)

    def y(self, value: float) -> float:
        """Return where a value lies."""
        if self.is_log:
            share = _log_of_quotient(value, self.y0) / _log_of_quotient(self.y1, self.y0)
        else:  # by halves: the difference of the largest floats is none
            share = (value / 2 - self.y0 / 2) / (self.y1 / 2 - self.y0 / 2)
        return self.bottom - share * (self.bottom - self.top)

    def has(self, x: float) -> bool:
        """Whether a value of x lies in the picture."""
        return self.x0 <= x <= self.x1


def _frame(
    series: Iterable[Series],
    marks: Sequence[Mark],
    x_label: str,
    x_range: tuple[float, float] | None,
    width: int,
    height: int,
    look: Look,
) -> _Frame | None:
    """Return the frame of all points; None where none is finite."""
    points = [point for each in series for point in each.points]
    values = [point.value for point in points if math.isfinite(point.value)]
    if not values:
        return None
    x0, x1 = x_range or axis_range(point.x for point in points)
    y0, y1 = min(values), max(values)
    is_log = look.is_log and y0 > LOG_FROM
    # An even curve lies in the middle; another does not touch the edges.
    if is_log:
        factor = math.exp(_log_of_quotient(y1, y0) * ROOM / 2) if y1 > y0 else 1 + ROOM
        y0, y1 = y0 / factor, _finite(y1 * factor)
    else:
        room = ROOM * (y1 / 2 - y0 / 2) or abs(y0) * ROOM or 1.0
        y0, y1 = _finite(y0 - room), _finite(y1 + room)
    if look.is_growing:
        y0, y1 = _round_edges(y0, y1, is_log=is_log)
    has_words = width >= WIDE_MIN and any(mark.kind != COMMIT for mark in marks)
    return _Frame(
        x0=x0,
        x1=x1 if x1 > x0 else x0 + 1.0,
        y0=y0,
        y1=y1,
        is_log=is_log,
        width=width,
        height=height,
        top=TOP + (LABELS if has_words else 0),
        bottom=height - BOTTOM - (AXIS_NAME if height >= HIGH_MIN and x_label else 0),
    )


def _round_edges(low: float, high: float, *, is_log: bool) -> tuple[float, float]:
    """Return round values a little below and above; the same where there are none."""
    if is_log:
        first, last = (math.log10(value) * ROUND_PARTS for value in (low, high))
        return 10 ** (math.floor(first) / ROUND_PARTS), 10 ** min(
            math.ceil(last) / ROUND_PARTS, 308.0
        )
    step = _round_step(high / ROUND_PARTS - low / ROUND_PARTS)
    if not math.isfinite(step):
        return low, high
    return _finite(math.floor(low / step) * step), _finite(math.ceil(high / step) * step)


def _log_of_quotient(high: float, low: float) -> float:
    """Return log(high / low), also of floats so far apart that their quotient is none."""
    quotient = high / low
    return math.log(quotient) if math.isfinite(quotient) else math.log(high) - math.log(low)


def _finite(value: float) -> float:
    """Return the value, or the largest float there is."""
    return min(max(value, -sys.float_info.max), sys.float_info.max)


def _svg(frame: _Frame, description: str, parts: Sequence[str]) -> str:
    size = "panel" if frame.is_wide else "panel small"
    edges = {"x0": frame.x0, "x1": frame.x1, "y0": frame.y0, "y1": frame.y1}
    places = {
        "left": frame.left,
        "right": frame.right,
        "top": frame.top,
        "bottom": frame.bottom,
    }
    data = " ".join(f'data-{name}="{value:.10g}"' for name, value in {**edges, **places}.items())
    log = ' data-log=""' if frame.is_log else ""
    head = (
        f'<svg class="{size}" viewBox="0 0 {frame.width} {frame.height}" role="img" '
        f'aria-label="{escape(description)}" {data}{log}>'
    )
    return "\n".join([head, *parts, "</svg>"])


def _described(curve: Curve, x_label: str) -> str:
    values = [p.value for s in curve.kept for p in s.points if math.isfinite(p.value)]
    if not values:
        return f"{curve.name} by {x_label}"
    unit = f" {curve.unit}" if curve.unit else ""
    last = curve.last
    newest = "" if last is None else f"; {last.value:.6g}{unit} after step {last.step}"
    return f"{curve.name} by {x_label}, {min(values):.6g} to {max(values):.6g}{unit}{newest}"


# --- axes -------------------------------------------------------------------------------------------


def _axes(frame: _Frame, x_label: str) -> Iterator[str]:
    count = max(3, (frame.bottom - frame.top) // 45)
    values = (log_ticks if frame.is_log else ticks)(frame.y0, frame.y1, count)
    for value in values:
        y = frame.y(value)
        text = f"{value:.3g}" if frame.is_log else tick_text(value, frame.y0, frame.y1)
        yield (
            f'<line class="grid" x1="{frame.left}" x2="{frame.right}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="end" x="{frame.left - 6}" y="{y + 4:.1f}">'
            f"{text}</text>"
        )
    floor = frame.bottom
    yield f'<line class="floor" x1="{frame.left}" x2="{frame.right}" y1="{floor}" y2="{floor}"/>'
    for value in ticks(frame.x0, frame.x1, max(2, (frame.right - frame.left) // 90)):
        x, text = frame.x(value), tick_text(value, frame.x0, frame.x1)
        is_cut = x + CHARACTER * len(text) / 2 > frame.width
        anchor = "end" if is_cut else "middle"
        place = frame.width - 2 if is_cut else x
        yield f'<text class="{anchor}" x="{place:.1f}" y="{floor + 17}">{text}</text>'
    if x_label and frame.height >= HIGH_MIN:
        middle = (frame.left + frame.right) / 2
        yield (
            f'<text class="middle" x="{middle:.0f}" y="{frame.height - 5}">{escape(x_label)}</text>'
        )


def ticks(low: float, high: float, count: int) -> list[float]:
    """Return round values from `low` to `high`, about `count` of them: 1, 2 or 5 times a power of 10.

    `ticks(0.0, 120.0, 5)` is [0, 20, 40, 60, 80, 100, 120].
    """
    step = _round_step(high / max(1, count) - low / max(1, count))
    if not math.isfinite(step) or step <= 0:
        return []
    first = math.ceil(low / step - ALMOST)
    last = math.floor(high / step + ALMOST)
    return [number * step for number in range(first, min(last, first + 4 * count) + 1)]


def log_ticks(low: float, high: float, count: int) -> list[float]:
    """Return round values from `low` above 0 to `high` for an axis of logarithms, about `count`.

    Of powers of 10 every one, or every second, third …; within a few of them also their doubles and
    fives; within less than two `ticks`. `log_ticks(0.9, 110.0, 3)` is [1, 10, 100].
    """
    first, last = math.ceil(math.log10(low) - ALMOST), math.floor(math.log10(high) + ALMOST)
    powers = [10.0**n for n in range(first, last + 1)]
    if len(powers) >= count:
        return powers[:: math.ceil(len(powers) / (2 * count))]
    between = [n * 10.0**power for power in range(first - 1, last + 1) for n in (1, 2, 5)]
    shown = [value for value in between if low <= value <= high]
    return shown if len(shown) >= min(3, count) else ticks(low, high, count)


def _round_step(step: float) -> float:
    """Return the largest round step that is not above `step`, or the smallest above it if closer."""
    if not step > 0 or not math.isfinite(step):
        return math.nan
    power = 10.0 ** math.floor(math.log10(step))
    if not power:
        return math.nan
    return float(min((1, 2, 5, 10), key=lambda n: abs(math.log(n * power / step)))) * power


def tick_text(value: float, low: float, high: float) -> str:
    """Return a tick's number, as short as the axis from `low` to `high` allows: 0.25, 1.5k, 2e-05."""
    largest, span = max(abs(low), abs(high)), high / 2 - low / 2
    if abs(value) < span * ALMOST:
        return "0"
    if largest >= HUGE or largest < TINY:
        return f"{value:.3g}"
    scale, letter = next(((s, word) for s, word in SCALES if largest >= 10 * s), (1.0, ""))
    digits = max(0, min(6, 1 - math.floor(math.log10(2 * span / scale) - 0.3)))
    text = f"{value / scale:.{digits}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text}{letter}"


# --- lines ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Line:
    """Points of one class, with their name."""

    css: str
    title: str
    points: Sequence[Point]


def _joined(curve: Curve, chosen: Iterable[Series]) -> Iterator[_Line]:
    """Yield a line of each series, from the last point that was kept before it on."""
    ends: dict[int | None, dict[int, Point]] = {}  # by rank and attempt, the last one kept
    for series in curve.kept:
        ends.setdefault(series.rank, {})[series.attempt_id] = series.points[-1]
    for series in chosen:
        newest = series.attempt_id - 1 if series.is_kept else series.attempt_id
        before = [
            end
            for attempt_id, end in ends.get(series.rank, {}).items()
            if attempt_id <= newest and end.step < series.points[0].step
        ]
        joint = max(before, key=lambda point: point.step, default=None)
        points = series.points if joint is None else (joint, *series.points)
        kept = "kept" if series.is_kept else "lost"
        title = f"attempt {series.attempt_id}: {len(series.points)} points {kept}"
        number = series.attempt_id
        if series.rank is not None:
            title = f"rank {series.rank}, {title}"
            number = series.rank + 1
        css = f"line {colour(number)}" if series.is_kept else "line lost"
        yield _Line(css, title, points)


def _kept(curve: Curve, look: Look) -> Iterator[_Line]:
    """Yield the lines of what was kept; faint behind their averages, where these are asked for."""
    if look.smooth:
        yield from map(_raw, _joined(curve, curve.kept))
        curve = averaged(curve, look.smooth)
    yield from _joined(curve, curve.kept)


def _raw(line: _Line) -> _Line:
    return replace(line, css=f"{line.css} raw")


def _lines(frame: _Frame, lines: Iterable[_Line]) -> Iterator[str]:
    for line in lines:
        for points in _unbroken(frame, line.points):
            if len(points) == 1:
                x, y = frame.x(points[0].x), frame.y(points[0].value)
                yield (
                    f'<circle class="{line.css}" cx="{x:.1f}" cy="{y:.1f}" r="2">'
                    f"<title>{escape(line.title)}</title></circle>"
                )
            else:
                places = " ".join(f"{frame.x(p.x):.1f},{frame.y(p.value):.1f}" for p in points)
                yield (
                    f'<polyline class="{line.css}" points="{places}">'
                    f"<title>{escape(line.title)}</title></polyline>"
                )


def _unbroken(frame: _Frame, points: Sequence[Point]) -> Iterator[list[Point]]:
    """Yield stretches of finite points that lie in the picture."""
    some: list[Point] = []
    for point in points:
        if math.isfinite(point.value):
            if frame.has(point.x):
                some.append(point)
        elif some:
            yield some
            some = []
    if some:
        yield some


def _series(points: Sequence[Point]) -> Series:
    return Series(attempt_id=1, rank=None, is_kept=True, points=tuple(points), count=len(points))


def _areas(frame: _Frame, bands: Mapping[str, Band]) -> Iterator[str]:
    """Yield what lies between the edges of each band, which has no edge of its own."""
    for label, band in bands.items():
        edges = [
            (low, high)
            for low, high in zip(band.low, band.high, strict=True)
            if frame.has(low.x) and math.isfinite(low.value) and math.isfinite(high.value)
        ]
        around = [*(high for _, high in edges), *(low for low, _ in reversed(edges))]
        places = " ".join(f"{frame.x(p.x):.1f},{frame.y(p.value):.1f}" for p in around)
        yield (
            f'<polygon class="spread {band.css}" points="{places}">'
            f"<title>deviation from the {escape(label)}</title></polygon>"
        )


# --- marks ------------------------------------------------------------------------------------------


def _gaps(frame: _Frame, series: Iterable[Series]) -> Iterator[str]:
    """Yield a cross at the top for each value that is not a finite number."""
    odd = [(s, p) for s in series for p in s.points if not math.isfinite(p.value)]
    for each, point in odd[:GAPS_MAX]:
        if frame.has(point.x):
            x, y = frame.x(point.x), frame.top + 5
            title = f"{point.value} in step {point.step}, attempt {each.attempt_id}"
            cross = f"M{x - 4:.1f} {y - 4}l8 8m-8 0l8 -8"
            yield f'<path class="gap" d="{cross}"><title>{title}</title></path>'


def _apart(frame: _Frame, marks: Iterable[Mark], kind: str) -> Iterator[tuple[float, Mark]]:
    """Yield the marks of a kind that lie in the picture, of those on each other the first."""
    chosen = sorted((m for m in marks if m.kind == kind and frame.has(m.x)), key=lambda m: m.x)
    last, count = -math.inf, 0
    for mark in chosen:
        x = frame.x(mark.x)
        if x - last >= APART and count < MARKS_MAX:
            last, count = x, count + 1
            yield x, mark


def _ends(frame: _Frame, marks: Sequence[Mark]) -> Iterator[str]:
    """Yield a dashed line for each attempt's end, and where there is room its reason."""
    free_from = float(frame.left)
    for x, mark in _apart(frame, marks, END):
        yield (
            f'<line class="ended" x1="{x:.1f}" x2="{x:.1f}" y1="{frame.top}" y2="{frame.bottom}">'
            f"<title>{escape(mark.text)}</title></line>"
        )
        begins = x - CHARACTER * len(mark.label)
        if frame.is_wide and begins >= free_from:
            free_from = x + CHARACTER
            yield (
                f'<text class="end word" x="{x:.1f}" y="{frame.top - 18}">'
                f"{escape(mark.label)}</text>"
            )


def _remedies(frame: _Frame, marks: Sequence[Mark]) -> Iterator[str]:
    """Yield a diamond for each remedy, and where there is room what it changed."""
    free_from, y = float(frame.left), frame.top - 8
    for x, mark in _apart(frame, marks, REMEDY):
        diamond = f"M{x:.1f} {y - 5}l5 5l-5 5l-5 -5z"
        yield f'<path class="remedy" d="{diamond}"><title>{escape(mark.text)}</title></path>'
        length = CHARACTER * len(mark.label)
        is_right = x + 8 + length <= frame.width
        begins = x + 8 if is_right else x - 8 - length
        if frame.is_wide and begins >= free_from:
            free_from = max(x + 8, begins + length) + CHARACTER
            anchor, place = ("start", x + 8) if is_right else ("end", x - 8)
            yield (
                f'<text class="{anchor} word" x="{place:.1f}" y="{y + 4}">'
                f"{escape(mark.label)}</text>"
            )


def _commits(frame: _Frame, marks: Sequence[Mark]) -> Iterator[str]:
    for x, mark in _apart(frame, marks, COMMIT):
        yield (
            f'<line class="commit" x1="{x:.1f}" x2="{x:.1f}" y1="{frame.bottom - 6}" '
            f'y2="{frame.bottom}"><title>{escape(mark.text)}</title></line>'
        )
