"""The pictures of a study: values against device-hours, and its trials as lines over parallel axes.

An axis is a key of the space, or a budget. No ids and no inline styles, as all pictures of the board. A
line is a link with its trial's words as its title, so that it needs no script.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from statistics import quantiles

from tracks_dagster.curves.curve import Point
from tracks_dagster.review.effects.pages.charts import dots_panel, log_ticks, tick_text, ticks
from tracks_dagster.studies.results import (
    Importances,
    Reading,
    importances,
    in_order,
    measured_of,
    readings,
)
from tracks_dagster.studies.search import space_of
from tracks_dagster.studies.space import CHOICE, INT, LOGUNIFORM, Param
from tracks_dagster.studies.words import config_words
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.study_state import StudyState, Trial
from tracks_dagster.track.text.units import counted
from tracks_dagster.wings.watch.board import formats
from tracks_dagster.wings.watch.board.run_page import Key, Panel
from tracks_dagster.wings.watch.board.study import Pictures, rungs_shown

WIDTH, HALF, HEIGHT = (
    1240,
    640,
    300,
)  # of a picture over the page, or half of it, in units of its text
SLICE_WIDTH, SLICE_HEIGHT, SLICE_EDGE = 220, 44, 4  # of one key alone
LEFT, RIGHT, TOP, BOTTOM = 24, 96, 34, 30
TICKS = 4
NAME_CHARACTERS_MAX, LABEL_CHARACTERS_MAX = 17, 12
BEYOND = 3.0  # times the range of the middle half, from which on a value is at the end of its axis
ENOUGH = 4  # values that a middle half is taken of
AXES_MAX = 10  # keys of a space that are drawn
LINES_MAX = 240  # trials that are drawn: the best, and evenly of the others
BEST_DRAWN = 60
COLOURS = 6  # classes a0 to a5
SHADES = 5  # classes q0 to q4, the best fifth first


def pictures_of(study: StudyState) -> Pictures:
    """Return what is drawn of a study."""
    drawn = _drawn(in_order(study))
    seen = readings(study)
    history, beyond = _history(study, seen)
    colours = sorted({each.rung for each in seen})[-COLOURS:]
    budgets = study.declared.budgets
    return Pictures(
        history=history,
        keys=tuple(
            Key(colour=_colour(rung), text=f"at step {formats.grouped(budgets[rung])}")
            for rung in colours
            if len(budgets) > 1
        ),
        over_keys=_over_keys(study, drawn, importances(study)),
        over_budgets=_over_budgets(study, drawn, rungs_shown(study)),
        slices=_slices(study, drawn),
        words=tuple(filter(None, (beyond, _drawn_words(study, len(drawn)) if drawn else ""))),
    )


def _colour(rung: int) -> str:
    return f"a{rung % COLOURS}"


def _history(study: StudyState, seen: Sequence[Reading]) -> tuple[Panel | None, str]:
    """Return each reading and the best so far at each budget against device-hours; and what is left
    out."""
    if not seen:
        return None, ""
    scale = scale_of([each.value for each in seen])
    better = min if study.declared.direction == "min" else max
    dots: dict[str, list[Point]] = {}
    lines: dict[str, tuple[str, list[Point]]] = {}
    best: dict[int, float] = {}
    newest = sorted({each.rung for each in seen})[-COLOURS:]
    for each in seen:
        if each.rung not in newest:
            continue
        point = Point(step=each.trial, x=each.hours, value=each.value, at=0.0)
        if scale.has(each.value):
            dots.setdefault(_colour(each.rung), []).append(point)
        known = best.get(each.rung)
        best[each.rung] = each.value if known is None else better(known, each.value)
        steps = formats.grouped(study.declared.budgets[each.rung])
        line = lines.setdefault(f"best so far at step {steps}", (_colour(each.rung), []))[1]
        if known is None or best[each.rung] != known:
            if known is not None:
                line.append(_at(each.hours, known))
            line.append(_at(each.hours, best[each.rung]))
    for rung, (_, line) in zip(best, lines.values(), strict=True):
        line.append(_at(seen[-1].hours, best[rung]))
    shown = {title: (css, _within(line, scale)) for title, (css, line) in lines.items()}
    name = f"{study.declared.metric}, best so far"
    svg = dots_panel(dots, shown, name=name, x_label="device-hours", width=720, height=300)
    beyond = sum(not scale.has(each.value) for each in seen)
    words = (
        f"{counted(beyond, 'value')} beyond the scale {'is' if beyond == 1 else 'are'} not drawn."
    )
    value = "" if study.best is None else formats.number(measured_of(study.best)[-1].value)
    panel = Panel(name=name, value=value, svg=svg, kind="against device-hours")
    return panel, words if beyond else ""


def _at(hours: float, value: float) -> Point:
    return Point(step=0, x=hours, value=value, at=0.0)


def _within(line: Sequence[Point], scale: Scale) -> list[Point]:
    return [each for each in line if scale.has(each.value)]


def _drawn(ordered: Sequence[Trial]) -> list[Trial]:
    """Return the trials that are drawn, the best first: those with a value, LINES_MAX at most."""
    measured = [each for each in ordered if measured_of(each)]
    if len(measured) <= LINES_MAX:
        return measured
    rest = measured[BEST_DRAWN:]
    count = LINES_MAX - BEST_DRAWN
    return measured[:BEST_DRAWN] + [rest[i * len(rest) // count] for i in range(count)]


def _drawn_words(study: StudyState, drawn: int) -> str:
    measured = sum(bool(measured_of(each)) for each in study.trials)
    some = f"{drawn} of {measured}" if drawn < measured else f"all {drawn}"
    return (
        f"Drawn: {some} trials that have a value, the best fifth darkest, the best one in a colour of "
        "its own. A line leads to its run."
    )


def _shade(place: int, count: int) -> str:
    return "top" if place == 0 else f"q{place * SHADES // count}"


def _title(study: StudyState, trial: Trial) -> str:
    value = formats.number(measured_of(trial)[-1].value)
    return (
        f"trial {trial.number}, {trial.status}: {study.declared.metric} {value} at step "
        f"{formats.grouped(_step_of(trial))}; {config_words(trial.config)}"
    )


def _step_of(trial: Trial) -> int:
    """Return the step of a trial's newest value."""
    judged = [r for r in trial.rungs if r.judged is not None and r.judged.value is not None]
    return judged[-1].proposed.steps


def _over_keys(study: StudyState, drawn: Sequence[Trial], found: Importances | None) -> str:
    """Return the trials over the keys of the space and their newest value."""
    if not drawn:
        return ""
    params = space_of(study.declared).params
    by_importance = [] if found is None else [each.key for each in found.keys]
    most = set([*by_importance, *params][:AXES_MAX]) if len(params) > AXES_MAX else set(params)
    keys = [name for name in params if name in most]
    values = [measured_of(each)[-1].value or 0.0 for each in drawn]
    scale = scale_of(values)
    axes = [
        axis_of(name, params[name], has_none=any(name not in t.config for t in drawn))
        for name in keys
    ]
    axes.append(scale.axis(study.declared.metric))
    lines = [
        Line(
            title=_title(study, trial),
            address=f"/runs/{trial.last.proposed.run_id}",
            css=_shade(place, len(drawn)),
            shares=(
                *(
                    share_of(params[name], trial.config[name]) if name in trial.config else None
                    for name in keys
                ),
                scale.share(values[place]),
            ),
        )
        for place, trial in enumerate(drawn)
    ]
    words = f"Trials over {', '.join(keys)} and {study.declared.metric}"
    return parallel(axes, lines[::-1], name=words)


def _over_budgets(study: StudyState, drawn: Sequence[Trial], columns: Sequence[int]) -> str:
    """Return the trials over the budgets, each as far as it has a value; "" of a single budget."""
    if len(columns) < 2:
        return ""
    by_trial = {
        t.number: [v for c in columns if (j := t.judged_at(c)) and (v := j.value) is not None]
        for t in drawn
    }
    values = [each for found in by_trial.values() for each in found]
    if not values:
        return ""
    scale = scale_of(values)
    whole = scale.axis("")
    axes = [
        Axis(name=f"step {formats.grouped(study.declared.budgets[each])}", ticks=whole.ticks)
        for each in columns
    ]
    lines = [
        Line(
            title=_title(study, trial),
            address=f"/runs/{trial.last.proposed.run_id}",
            css=_shade(place, len(drawn)),
            shares=tuple(map(scale.share, by_trial[trial.number])),
        )
        for place, trial in enumerate(drawn)
        if by_trial[trial.number]
    ]
    name = f"{study.declared.metric} of each trial at each budget"
    return parallel(axes, lines[::-1], name=name, width=HALF)


def _slices(study: StudyState, drawn: Sequence[Trial]) -> dict[str, str]:
    """Return of each key a picture of its values against the trials' newest value."""
    if not drawn:
        return {}
    values = [measured_of(each)[-1].value or 0.0 for each in drawn]
    scale = scale_of(values)
    return {
        name: _slice(study, (name, param), drawn, list(map(scale.share, values)))
        for name, param in space_of(study.declared).params.items()
    }


def _slice(
    study: StudyState, key: tuple[str, Param], drawn: Sequence[Trial], heights: Sequence[float]
) -> str:
    name, param = key
    dots: dict[str, list[str]] = {}
    for place, trial in reversed(list(enumerate(drawn))):
        if name in trial.config:
            x = SLICE_EDGE + share_of(param, trial.config[name]) * (SLICE_WIDTH - 2 * SLICE_EDGE)
            y = SLICE_HEIGHT - SLICE_EDGE - heights[place] * (SLICE_HEIGHT - 2 * SLICE_EDGE)
            dots.setdefault(_shade(place, len(drawn)), []).append(f"M{x:.0f} {y:.0f}h0")
    label = escape(f"{study.declared.metric} by {name}")
    paths = (f'<path class="{css}" d="{"".join(each)}"/>' for css, each in dots.items())
    return (
        f'<svg class="parallel slice" viewBox="0 0 {SLICE_WIDTH} {SLICE_HEIGHT}" role="img" '
        f'aria-label="{label}">{"".join(paths)}</svg>'
    )


# --- parallel axes ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis. ticks: where, from 0 at the bottom to 1, and what is written there; has_none: a place
    below it is for lines without a value."""

    name: str
    ticks: tuple[tuple[float, str], ...]
    has_none: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One trial. shares: where it crosses each axis, None for the place of no value; a line shorter
    than the axes ends there. css: of its colour."""

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
