"""The trials of a study as a table: some of them, in an order, a page at a time. Pure.

What is chosen is in the address. So each choice is a link.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from tracks_dagster.studies.deciding import value_words
from tracks_dagster.studies.results import measured_of
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.study_state import Rung, StudyState, Trial, TrialStatus
from tracks_dagster.track.text.units import about
from tracks_dagster.wings.watch.board import formats
from tracks_dagster.wings.watch.board.all_runs import MARKS
from tracks_dagster.wings.watch.board.record import Cell
from tracks_dagster.wings.watch.board.run_page import Link

ROWS = 100  # trials on a page of the table
RUNGS_MAX = 8  # columns of the table, axes of a picture: the first and the newest
ALL = "all"
VALUE, TIME, TRIAL = "value", "time", "trial"
Asked = Mapping[str, str]  # of the address: show, sort, without what is empty


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A column of the table. address: of this page sorted by it, "" where it cannot be."""

    name: str
    address: str = ""
    mark: str = ""
    is_down: bool = False
    is_number: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """One trial. run_id: of its newest run; cells: of its keys, its budgets, its device time."""

    number: int
    run_id: str
    status: str
    is_best: bool
    cells: tuple[Cell, ...]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialTable:
    """A page of the trials. shows: which of them may be chosen; shown: how many these are; ways: to
    the pages beside it."""

    shows: tuple[Link, ...]
    heads: tuple[Head, ...]
    rows: tuple[TrialRow, ...]
    shown: str
    ways: tuple[Link, ...]


def trial_table(study: StudyState, ordered: Sequence[Trial], asked: Asked, page: int) -> TrialTable:
    """Return a page of it. ordered: the trials, the best first; page: 0-based.

    Raises InvalidInput for an order, or a choice of trials, that there is not.
    """
    chosen = _chosen(study, ordered, asked)
    rows = chosen[page * ROWS : (page + 1) * ROWS]
    columns, best = rungs_shown(study), study.best
    return TrialTable(
        shows=tuple(_shows(study, asked)),
        heads=tuple(_heads(study, columns, asked)),
        rows=tuple(_row(study, each, columns, is_best=each is best) for each in rows),
        shown=_shown(len(chosen), page, len(rows)),
        ways=tuple(_ways(asked, page, len(chosen))),
    )


def number_cell(text: str) -> Cell:
    """Return a cell whose text is a number."""
    return Cell(text=text, is_number=True)


def shown_value(value: Json) -> str:
    """Return the value of a key as it is shown."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return formats.number(value) if isinstance(value, int) else f"{value:.3g}"


def rungs_shown(study: StudyState) -> list[int]:
    """Return the budgets that are columns: those that a trial was given, the newest RUNGS_MAX."""
    most = max((len(each.rungs) for each in study.trials), default=0)
    return list(range(most))[-RUNGS_MAX:]


def _chosen(study: StudyState, ordered: Sequence[Trial], asked: Asked) -> list[Trial]:
    show, sort = asked.get("show", ALL), asked.get("sort", "")
    statuses = [each.value for each in TrialStatus]
    if show != ALL and show not in statuses:
        raise InvalidInput(f"show={show[:40]!r} is not one of {', '.join((ALL, *statuses))}.")
    shown = [each for each in ordered if show in (ALL, each.status.value)]
    key = sort.removeprefix("-")
    if not key:
        return shown
    if key not in (VALUE, TIME, TRIAL, *study.declared.space):
        raise InvalidInput(f"sort={sort[:40]!r} is not a column of trials.")
    has = [each for each in shown if _sorted_by(each, key) is not None]
    rest = [each for each in shown if _sorted_by(each, key) is None]
    has.sort(key=lambda each: _comparable(_sorted_by(each, key)), reverse=sort.startswith("-"))
    return has + rest


def _sorted_by(trial: Trial, key: str) -> Json:
    if key == VALUE:
        measured = measured_of(trial)
        return measured[-1].value if measured else None
    if key == TIME:
        return _device_s(trial)
    return trial.number if key == TRIAL else trial.config.get(key)


def _comparable(value: Json) -> tuple[bool, float, str]:
    is_number = isinstance(value, int | float)
    return (not is_number, float(value) if is_number else 0.0, str(value))


def _device_s(trial: Trial) -> float:
    rungs = (*trial.rungs, *trial.repeats)
    return math.fsum(each.judged.device_s for each in rungs if each.judged is not None)


def _heads(study: StudyState, columns: Sequence[int], asked: Asked) -> Iterator[Head]:
    yield _head(TRIAL, TRIAL, asked, is_number=False)
    yield Head(name="state")
    for name in study.declared.space:
        yield _head(name, name, asked)
    for each in columns:
        steps = formats.grouped(study.declared.budgets[each])
        if each == columns[-1]:
            yield _head(f"at step {steps}", VALUE, asked)
        else:
            yield Head(name=f"at step {steps}", is_number=True)
    if study.declared.repeat:
        yield Head(name="over its seeds", is_number=True)
    yield _head("device time", TIME, asked)
    yield Head(name="why")


def _head(name: str, key: str, asked: Asked, *, is_number: bool = True) -> Head:
    sort = asked.get("sort", "")
    is_it = sort.removeprefix("-") == key
    is_down = sort.startswith("-")
    return Head(
        name=name,
        address=_address(asked, sort=key if is_it and is_down else f"-{key}" if is_it else key),
        mark=MARKS[is_down] if is_it else "",
        is_down=is_down,
        is_number=is_number,
    )


def _row(study: StudyState, trial: Trial, columns: Sequence[int], *, is_best: bool) -> TrialRow:
    cells = [
        number_cell(shown_value(trial.config[k]) if k in trial.config else "")
        for k in study.declared.space
    ]
    cells += [_rung_cell(trial, each) for each in columns]
    if study.declared.repeat:
        spread = trial.mean_and_deviation
        cells.append(number_cell("" if spread is None else f"{spread[0]:.4g} ± {spread[1]:.2g}"))
    device_s = _device_s(trial)
    cells.append(number_cell(about(device_s) if device_s else ""))
    return TrialRow(
        number=trial.number,
        run_id=trial.last.proposed.run_id,
        status=trial.status.value,
        is_best=is_best,
        cells=tuple(cells),
        why=_why(trial),
    )


def _rung_cell(trial: Trial, rung: int) -> Cell:
    """Return what came of a budget, which leads to the run that trained up to it."""
    if rung >= len(trial.rungs):
        return Cell(is_number=True)
    there = trial.rungs[rung]
    judged = there.judged
    return Cell(
        text="open" if judged is None else _judged_text(judged.value, judged.outcome),
        address=f"/runs/{there.proposed.run_id}",
        soft=_copied(trial, there),
        is_number=True,
    )


def _judged_text(value: float | None, outcome: str) -> str:
    return value_words(value, outcome) if value is None else formats.number(value)


def _copied(trial: Trial, rung: Rung) -> str:
    """Return from whose weights a run went on, where these were not its own trial's."""
    source, own = rung.proposed.source, [each.proposed.run_id for each in trial.rungs]
    return "" if source is None or source.run_id in own else f"from {source.run_id}"


def _why(trial: Trial) -> str:
    """Return why it was stopped, or failed; else why it was given what it has."""
    judged = trial.last.judged
    if trial.stopped is not None:
        return trial.stopped.why
    if judged is not None and judged.value is None:
        return judged.why
    return trial.last.proposed.why if len(trial.rungs) > 1 else ""


def _shows(study: StudyState, asked: Asked) -> Iterator[Link]:
    chosen = asked.get("show", ALL)
    counts = {ALL: len(study.trials)}
    for trial in study.trials:
        counts[trial.status.value] = counts.get(trial.status.value, 0) + 1
    for name, count in counts.items():
        address = _address(asked, show="" if name == ALL else name)
        yield Link(
            label=f"{name} {formats.grouped(count)}", address=address, is_chosen=name == chosen
        )


def _shown(count: int, page: int, rows: int) -> str:
    if not rows:
        return "No trial is so."
    if count <= ROWS:
        return ""
    return f"Trials {page * ROWS + 1} to {page * ROWS + rows} of {formats.grouped(count)}."


def _ways(asked: Asked, page: int, count: int) -> Iterator[Link]:
    if page:
        yield Link(label="before", address=_address(asked, page=str(page - 1)))
    if (page + 1) * ROWS < count:
        yield Link(label="more", address=_address(asked, page=str(page + 1)))


def _address(asked: Asked, **changes: str) -> str:
    query = urlencode({key: text for key, text in {**asked, **changes}.items() if text})
    return f"?{query}#trials"
