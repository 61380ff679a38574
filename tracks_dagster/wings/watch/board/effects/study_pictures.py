"""The pictures of a study: values against device-hours, and its trials as lines over parallel axes.

An axis is a key of the space, or a budget. No ids and no inline styles, as all pictures of the board. A
line is a link with its trial's words as its title, so that it needs no script.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tracks_dagster.curves.curve import Point
from tracks_dagster.review.effects.pages.charts import dots_panel
from tracks_dagster.studies.results import (
    Importances,
    Reading,
    importances,
    in_order,
    measured_of,
    readings,
)
from tracks_dagster.studies.search import space_of
from tracks_dagster.studies.space import Param
from tracks_dagster.studies.words import config_words
from tracks_dagster.track.states.study_state import StudyState, Trial
from tracks_dagster.track.text.units import counted
from tracks_dagster.wings.watch.board import formats
from tracks_dagster.wings.watch.board.effects.parallel import (
    AXES_MAX,
    Axis,
    Line,
    Scale,
    axis_of,
    parallel,
    scale_of,
    share_of,
)
from tracks_dagster.wings.watch.board.run_page import Key, Panel
from tracks_dagster.wings.watch.board.study import Pictures
from tracks_dagster.wings.watch.board.trial_table import rungs_shown

HALF = 640  # the width of a picture over half of the page
SLICE_WIDTH, SLICE_HEIGHT, SLICE_EDGE = 220, 44, 4  # of one key alone
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
