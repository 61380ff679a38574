"""Pictures in Dagster's page of an attempt, markdown with the image inside: the run's loss, the lights.

Dagster shows markdown of less than a thousand characters in the table of metadata, and longer one at a
click: so of the loss there is a small picture and a large one. None asks a server for anything.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from tracks_dagster.curves.curve import Curve, Point
from tracks_dagster.curves.effects.reading import read_curves
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.review.effects.pages.charts import curve_panel, image_uri
from tracks_dagster.review.lights import Colour, Lights
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.states.run_state import RunState

LOSS = "loss"
SMALL_CHARACTERS_MAX = 1000  # of Dagster's web server, 1.13: from there on it is a button
LARGE_CHARACTERS_MAX = 200_000  # of an event in Dagster's log
LARGE_POINTS_MAX = 600
SMALL_POINTS_MAX = 56
WIDTH, HEIGHT = 300, 48
KEPT, LOST = "#2563c9", "#b3b8c0"  # which are seen on white and on black
LIGHTS = {  # a shape each, so that colour is not all there is
    Colour.GREEN: '<circle cx="8" cy="8" r="6.5" fill="#2e9e5b"/>',
    Colour.YELLOW: '<path d="M8 1.5 15 14.5H1z" fill="#d99a1c"/>',
    Colour.RED: '<rect x="1.5" y="1.5" width="13" height="13" rx="2" fill="#d64541"/>',
    Colour.GREY: '<circle cx="8" cy="8" r="5.5" fill="none" stroke="#8a919c" stroke-width="2"/>',
}


def pictures(tracks: Tracks, state: RunState, cache: Path | None) -> dict[str, str]:
    """Return the small and the large picture, as markdown; none where no loss is known."""
    try:
        curves = read_curves(tracks, state, [LOSS], cache=cache, points_max=LARGE_POINTS_MAX)
    except InvalidInput:  # no attempt reported a loss
        return {}
    curve = curves.find(LOSS)
    if curve is None or not any(_finite(series.points) for series in curve.series):
        return {}
    found = {"curve/loss": small_picture(curve)}
    panel = curve_panel(curve, curves.marks, x_label=curves.x_label)
    large = f"![{_words(curve)}]({image_uri(panel)})" if panel else ""
    if large and len(large) < LARGE_CHARACTERS_MAX:
        found["curve/loss_large"] = large
    return found


def small_picture(curve: Curve) -> str:
    """Return a curve without axes, in less than SMALL_CHARACTERS_MAX."""
    kept = _finite([point for series in curve.kept for point in series.points])
    lost = [_finite(series.points) for series in curve.series if not series.is_kept]
    every = [*kept, *(point for points in lost for point in points)]
    frame = (
        min(p.x for p in every),
        max(p.x for p in every),
        min(p.value for p in every),
        max(p.value for p in every),
    )
    for lost_points in (SMALL_POINTS_MAX // 4 if kept else SMALL_POINTS_MAX, 0):
        paths = [
            *(_path(points, frame, LOST, lost_points // len(lost)) for points in lost),
            _path(kept, frame, KEPT, SMALL_POINTS_MAX),
        ]
        svg = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
            f'fill="none" stroke-width="2">{"".join(paths)}</svg>'
        )
        picture = f"![{_words(curve)}]({_inline(svg)})"
        if len(picture) < SMALL_CHARACTERS_MAX:
            break
    return picture


def lights_strip(lights: Lights) -> str:
    """Return the three lights side by side."""
    shapes = (
        f'<g transform="translate({22 * place})">{LIGHTS[light.colour]}</g>'
        for place, light in enumerate(lights.all)
    )
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" width="60" height="16">{"".join(shapes)}</svg>'
    words = ", ".join(f"{light.question} {light.colour}" for light in lights.all)
    return f"![{words}]({_inline(svg)})"


def _inline(svg: str) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def _path(
    points: Sequence[Point], frame: tuple[float, float, float, float], colour: str, points_max: int
) -> str:
    """Return a line in whole pixels through the extremes of `points`; empty where there are none."""
    shown = extremes(points, points_max)
    if not shown:
        return ""
    left, right, low, high = frame
    places = " ".join(
        f"{round(_share(p.x, left, right) * (WIDTH - 4)) + 2} "
        f"{round(_share(p.value, high, low) * (HEIGHT - 4)) + 2}"
        for p in shown
    )
    return f'<path stroke="{colour}" d="M{places}"/>'


def extremes(points: Sequence[Point], points_max: int) -> list[Point]:
    """Return at most so many points: of each of equal stretches its smallest and its largest."""
    if len(points) <= points_max:
        return list(points)
    pieces = points_max // 2
    found: list[Point] = []
    for piece in range(pieces):
        some = points[len(points) * piece // pieces : len(points) * (piece + 1) // pieces]
        ends = {min(some, key=_value), max(some, key=_value)}
        found += sorted(ends, key=lambda p: p.step)
    return found


def _finite(points: Iterable[Point]) -> list[Point]:
    return [point for point in points if math.isfinite(point.value)]


def _share(value: float, begin: float, end: float) -> float:
    """Return where a value lies, 0 at `begin` and 1 at `end`; halved, for the widest is not a float."""
    return (value / 2 - begin / 2) / ((end / 2 - begin / 2) or 1.0)


def _value(point: Point) -> float:
    return point.value


def _words(curve: Curve) -> str:
    """Return what the picture shows, for who cannot see it."""
    kept = _finite([point for series in curve.kept for point in series.points])
    if not kept:
        return f"{curve.name}: every step was lost"
    first, last = kept[0], kept[-1]
    return f"{curve.name} {first.value:.3g} at step {first.step}, {last.value:.3g} at {last.step}"
