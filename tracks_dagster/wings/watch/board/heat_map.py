"""A heat map of the ranks of a gang: a row a rank, a column a few steps. Pure.

Calm cells are not drawn at all: of 64 ranks in 120 columns a healthy gang's map is a few hundred bytes,
and one slow rank is the only thing that there is to see. A rank that is hot now is named in words
too, for who sees no colours.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median

from tracks_dagster.wings.watch.board import formats

COLUMNS_MAX = 120
RANKS_MAX = 128  # rows; of more ranks the hottest are drawn
NAMED_MAX = 4  # ranks in words
NEWEST_COLUMNS = 4  # that a rank is judged hot by: 20 steps, of a line every 5
HOT = 3  # the class from which on a rank is named
LABEL_WIDTH, WIDTH = 34, 480
ROW_HEIGHT_MIN, ROW_HEIGHT_MAX, HEIGHT = 4, 14, 256
AXIS_HEIGHT, LABEL_HEIGHT = 14, 10

Values = Mapping[int, Sequence[tuple[int, float]]]  # rank → (step, value), in order of steps
Cells = Mapping[int, Sequence[float | None]]  # rank → value of each column


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """From calm to hot. edges: the values at which classes 1 to 4 begin, ascending; texts: of classes
    0 to 4; relative: values are divided by the median over the ranks of their column first."""

    name: str
    unit: str
    edges: tuple[float, float, float, float]
    texts: tuple[str, str, str, str, str]
    describe: Callable[[float], str]
    relative: bool = False

    def level(self, value: float) -> int:
        """Return the class of a value, 0 to 4."""
        return bisect_right(self.edges, value)


# 1.33 is 1 / 0.75, from where on a rank counts as slow (health).
OWN_TIME = Scale(
    name="own forward time",
    unit="against the gang's median",
    edges=(1.1, 1.2, 1.33, 2.0),
    texts=("as the others", "1.1 ×", "1.2 ×", "1.33 ×", "2 × and more"),
    describe=lambda value: f"{value:.2f} × the gang's median over its newest steps",
    relative=True,
)
STEP_TIME = Scale(
    name="step time",
    unit="against the gang's median; it holds the wait for the others",
    edges=OWN_TIME.edges,
    texts=OWN_TIME.texts,
    describe=OWN_TIME.describe,
    relative=True,
)
# 0.2 of a step is where a light turns yellow (health).
DATA_WAIT = Scale(
    name="wait for data",
    unit="of a step",
    edges=(0.05, 0.1, 0.2, 0.4),
    texts=("under 5 %", "5 %", "10 %", "20 %", "40 % and more"),
    describe=lambda value: f"{100 * value:.0f} % of its newest steps is a wait for data",
)
# Negative, so that little use is hot; 50 % is where a light turns red (health).
DEVICE_USE = Scale(
    name="device utilisation",
    unit="as the driver reports it",
    edges=(-80.0, -65.0, -50.0, -25.0),
    texts=("80 % and more", "under 80 %", "under 65 %", "under 50 %", "under 25 %"),
    describe=lambda value: f"{-value:.0f} % utilised over its newest steps",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleKey:
    """One colour of the scale. css: its class."""

    css: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """One picture. words: a sentence for each rank that is hot now, and what is left out."""

    name: str
    unit: str
    svg: str
    scale: tuple[ScaleKey, ...]
    words: tuple[str, ...]


def rank_maps(by_rank: Mapping[str, Values], places: Mapping[int, str]) -> list[HeatMap]:
    """Return the maps of what the ranks measured, by the names of a `ranks` line; without what nobody
    measured."""
    whole, own = by_rank.get("step_s", {}), by_rank.get("own_s", {})
    found = (
        heat_map(own, OWN_TIME, places) if own else heat_map(whole, STEP_TIME, places),
        heat_map(_shares(by_rank.get("data_s", {}), whole), DATA_WAIT, places),
        heat_map(negative(by_rank.get("util", {})), DEVICE_USE, places),
    )
    return [each for each in found if each is not None]


def _shares(data: Values, steps: Values) -> Values:
    """Return how much of a step, its wait included, each rank waited for data."""
    whole = {rank: dict(line) for rank, line in steps.items()}
    return {
        rank: [
            (step, value / (value + whole[rank][step]))
            for step, value in line
            if step in whole.get(rank, {}) and value + whole[rank][step] > 0
        ]
        for rank, line in data.items()
    }


def negative(values: Values) -> Values:
    """Return the values so that little is hot."""
    return {rank: [(step, -value) for step, value in line] for rank, line in values.items()}


def heat_map(values: Values, scale: Scale, places: Mapping[int, str]) -> HeatMap | None:
    """Return the map of the ranks' values; None where there is none.

    places: of a rank, as "node-1, cuda:5", for the words.
    """
    steps = sorted({step for line in values.values() for step, _ in line})
    if not steps:
        return None
    cells = _cells(values, scale, steps)
    heat = {rank: _heat_now(line) for rank, line in cells.items()}
    hottest = sorted(cells, key=lambda rank: -heat[rank])[:RANKS_MAX]
    shown = {rank: cells[rank] for rank in sorted(hottest)}
    hot = [rank for rank in hottest if scale.level(heat[rank]) >= HOT]
    words = [
        f"rank {rank}{_at(places.get(rank))}: {scale.describe(heat[rank])}"
        for rank in hot[:NAMED_MAX]
    ]
    if len(hot) > NAMED_MAX:
        words.append(f"and {len(hot) - NAMED_MAX} more ranks")
    if len(cells) > len(shown):
        words.append(f"The {len(shown)} hottest of {len(cells)} ranks are drawn.")
    return HeatMap(
        name=scale.name,
        unit=f"{scale.unit}, steps {formats.grouped(steps[0])} to {formats.grouped(steps[-1])}",
        svg=_svg(shown, scale, steps, frozenset(hot)),
        scale=_keys(scale),
        words=tuple(words),
    )


def _at(place: str | None) -> str:
    return f" ({place})" if place else ""


def _keys(scale: Scale) -> tuple[ScaleKey, ...]:
    css = ("field", "h1", "h2", "h3", "h4")
    return tuple(ScaleKey(css=name, text=text) for name, text in zip(css, scale.texts, strict=True))


def _cells(values: Values, scale: Scale, steps: Sequence[int]) -> Cells:
    """Return each rank's value of each column: the hottest of its steps."""
    columns = min(COLUMNS_MAX, len(steps))
    column_of = {step: index * columns // len(steps) for index, step in enumerate(steps)}
    at_step: dict[int, float] = {}
    if scale.relative:
        by_step: dict[int, list[float]] = {}
        for line in values.values():
            for step, value in line:
                if math.isfinite(value):
                    by_step.setdefault(step, []).append(value)
        at_step = {step: median(found) for step, found in by_step.items()}
    cells: dict[int, list[float | None]] = {}
    for rank, line in values.items():
        row: list[float | None] = [None] * columns
        for step, value in line:
            reference = at_step.get(step, 0.0) if scale.relative else 1.0
            if not math.isfinite(value) or reference <= 0:
                continue
            index, heat = column_of[step], value / reference
            known = row[index]
            row[index] = heat if known is None else max(known, heat)
        cells[rank] = row
    return cells


def _heat_now(line: Sequence[float | None]) -> float:
    """Return the median of the newest columns, so that one slow step names nobody."""
    newest = [each for each in line[-NEWEST_COLUMNS:] if each is not None]
    return median(newest) if newest else -math.inf


def _svg(cells: Cells, scale: Scale, steps: Sequence[int], hot: frozenset[int]) -> str:
    tall = max(ROW_HEIGHT_MIN, min(ROW_HEIGHT_MAX, HEIGHT // max(1, len(cells))))
    bottom = tall * len(cells)
    columns = len(next(iter(cells.values()), ()))
    wide = (WIDTH - LABEL_WIDTH) / max(1, columns)
    paths: dict[str, list[str]] = {}
    labels: list[str] = []
    every = max(1, math.ceil(LABEL_HEIGHT / tall))  # rows between two labels
    named = [index for index, rank in enumerate(cells) if rank in hot]
    for index, (rank, line) in enumerate(cells.items()):
        y = index * tall
        is_near = any(abs(index - other) < every for other in named)
        if rank in hot or (index % every == 0 and not is_near):
            css = "end hot" if rank in hot else "end"
            labels.append(
                f'<text class="{css}" x="{LABEL_WIDTH - 4}" y="{y + tall / 2 + 3:.1f}">{rank}</text>'
            )
        column = 0
        for css, group in groupby(line, lambda value: _css(value, scale)):
            count = len(list(group))
            if css:
                x, width = LABEL_WIDTH + column * wide, count * wide
                box = f"M{x:.1f} {y}h{width:.1f}v{tall - 0.5:g}h-{width:.1f}z"
                paths.setdefault(css, []).append(box)
            column += count
    first, last = formats.grouped(steps[0]), formats.grouped(steps[-1])
    axis = (
        f'<text x="{LABEL_WIDTH}" y="{bottom + 11}">{first}</text>'
        f'<text class="end" x="{WIDTH}" y="{bottom + 11}">{last}</text>'
    )
    drawn = "".join(f'<path class="{css}" d="{"".join(d)}"/>' for css, d in sorted(paths.items()))
    return (
        f'<svg class="heat" viewBox="0 0 {WIDTH} {bottom + AXIS_HEIGHT}" role="img" '
        f'aria-label="{scale.name} by rank and step">'
        f'<rect class="field" x="{LABEL_WIDTH}" width="{WIDTH - LABEL_WIDTH}" height="{bottom}"/>'
        f"{drawn}{''.join(labels)}{axis}</svg>"
    )


def _css(value: float | None, scale: Scale) -> str:
    """Return the class of a cell; "" for a calm one, which the field's own colour shows."""
    if value is None:
        return "none"
    level = scale.level(value)
    return f"h{level}" if level else ""
