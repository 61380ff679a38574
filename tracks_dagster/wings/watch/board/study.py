"""The page of a study, and the list of all. Pure: a study's fold, or rows of the ledger, to a view.

What is chosen is in the address: which trials, in which order, which page. So each choice is a link.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote, urlencode

from tracks_dagster.studies.deciding import COMPLETE, value_words
from tracks_dagster.studies.off_peak import wait_words
from tracks_dagster.studies.results import (
    Importance,
    Importances,
    failures,
    importances,
    in_order,
    measured_of,
    rung_results,
)
from tracks_dagster.studies.words import best_words
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.study_state import HOUR_S, Rung, StudyState, Trial, TrialStatus
from tracks_dagster.track.text.safe_text import csv_text
from tracks_dagster.track.text.units import about, cost_text, counted
from tracks_dagster.wings.watch.board import formats
from tracks_dagster.wings.watch.board.all_runs import MARKS
from tracks_dagster.wings.watch.board.record import Cell, Section
from tracks_dagster.wings.watch.board.run_page import Key, Link, Panel, Tile

PAGE = "/studies"
ROWS = 100  # trials on a page of the table
RUNGS_MAX = 8  # columns of the table, axes of a picture: the first and the newest
COMPARED = 5  # of the best trials, by one link
WHY_MAX = 40  # reasons of failures
RUNS_NAMED_MAX = 5  # of one reason
ALL = "all"
VALUE, TIME, TRIAL = "value", "time", "trial"
Asked = Mapping[str, str]  # of the address: show, sort, without what is empty
METHOD = (
    "Each key by itself: trials are ranked by their value and parted by the key into up to five "
    "groups; the share of their ranks that the groups explain is Kruskal and Wallis' epsilon squared, "
    "0 where a key has no effect. What two keys do together is not seen, and a search that learns "
    "looks where it is good, so that a key which mattered may look small. Pale is what may be chance: "
    "of keys without any effect 5 in 100 show more."
)


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
class Bar:
    """What one key explains. share: in thousandths; best: where its values are best, in words."""

    key: str
    share: int
    value: str
    best: str
    is_clear: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """What is drawn of a study. history: values and the best so far; keys: what its colours mean;
    over_keys, over_budgets: SVG, "" without it; slices: of each key against the value;
    words: sentences about what is drawn."""

    history: Panel | None
    keys: tuple[Key, ...]
    over_keys: str
    over_budgets: str
    slices: Mapping[str, str]
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyView:
    """All that study.html shows."""

    title: str
    state: str
    best: str
    about: tuple[str, ...]
    links: tuple[Link, ...]
    command: str
    tiles: tuple[Tile, ...]
    pictures: Pictures
    bars: tuple[Bar, ...]
    bars_words: str
    sections: tuple[Section, ...]
    shows: tuple[Link, ...]
    heads: tuple[Head, ...]
    rows: tuple[TrialRow, ...]
    shown: str
    ways: tuple[Link, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudiesView:
    """All that studies.html shows."""

    title: str
    summary: str
    section: Section
    links: tuple[Link, ...]


def study_view(
    study: StudyState,
    asked: Asked,
    page: int,
    pictures: Pictures,
    *,
    currency: str = "",
    waits: str = "",
) -> StudyView:
    """Return the page. page: 0-based, of the table; currency: of the prices; waits: until when, in
    words.

    Raises InvalidInput for an order, or a choice of trials, that there is not.
    """
    declared = study.declared
    ordered = in_order(study)
    chosen = _chosen(study, ordered, asked)
    rows = chosen[page * ROWS : (page + 1) * ROWS]
    found, best = importances(study), study.best
    columns = rungs_shown(study)
    return StudyView(
        title=declared.study,
        state="open" if study.finished is None else study.finished.cause.replace("_", " "),
        best=best_words(study),
        about=tuple(filter(None, (*_about(study), waits))),
        links=tuple(_links(study, ordered)),
        command=_command(study),
        tiles=tuple(_tiles(study, currency)),
        pictures=pictures,
        bars=tuple(map(_bar, found.keys)) if found else (),
        bars_words=_bars_words(found),
        sections=tuple(
            each for each in (_rung_section(study), _failure_section(study)) if not each.is_empty
        ),
        shows=tuple(_shows(study, asked)),
        heads=tuple(_heads(study, columns, asked)),
        rows=tuple(_row(study, each, columns, is_best=each is best) for each in rows),
        shown=_shown(len(chosen), page, len(rows)),
        ways=tuple(_ways(asked, page, len(chosen))),
    )


# --- above the pictures ---------------------------------------------------------------------------


def _about(study: StudyState) -> Iterator[str]:
    declared = study.declared
    kind = declared.scheduler["kind"]
    budgets = ", ".join(map(formats.grouped, declared.budgets[:RUNGS_MAX]))
    more = " …" if len(declared.budgets) > RUNGS_MAX else ""
    yield (
        f"The {'least' if declared.direction == 'min' else 'largest'} {declared.metric} of "
        f"{declared.run.model_family}, by {declared.search['kind']} search and {kind} at "
        f"{'steps' if len(declared.budgets) > 1 else 'step'} {budgets}{more}, seed {declared.seed}; "
        f"declared by {declared.by} on {formats.clock(study.declared_at)}."
    )
    if study.finished is not None:
        yield study.finished.why
    elif study.stopped is not None:
        yield f"{study.stopped.by} stops it: {study.stopped.why}"


def _links(study: StudyState, ordered: Sequence[Trial]) -> Iterator[Link]:
    name = study.declared.study
    best = [each.last.proposed.run_id for each in ordered if measured_of(each)][:COMPARED]
    if len(best) > 1:
        query = urlencode([("run", run_id) for run_id in best])
        yield Link(label=f"compare the best {len(best)}", address=f"/compare?{query}")
    if best:
        yield Link(label="lineage of the best", address=f"/lineage?thing={quote(best[0])}")
    where = urlencode({"where": f"experiment={name}"})
    yield Link(label="its runs as a table", address=f"/runs?{where}")
    for kind in ("CSV", "JSON"):
        yield Link(label=kind, address=f"{PAGE}/{name}.{kind.lower()}")


def _command(study: StudyState) -> str:
    """Return what a person may do: end it, or let it go on."""
    if study.finished is None:
        return f'tracks stop {study.declared.study} --why "…"'
    return "" if study.finished.cause == COMPLETE else "tracks tune FILE"


def _tiles(study: StudyState, currency: str) -> Iterator[Tile]:
    declared = study.declared
    best = study.best
    if best is not None:
        measured = measured_of(best)
        spread = best.mean_and_deviation
        value = formats.number(measured[-1].value if spread is None else spread[0])
        beside = "" if spread is None else f" ± {spread[1]:.2g} over {len(best.repeats) + 1} seeds"
        yield Tile(
            label=f"best {declared.metric}", value=value, beside=f"trial {best.number}{beside}"
        )
    over = sum(t.status not in (TrialStatus.OPEN, TrialStatus.PAUSED) for t in study.trials)
    yield Tile(
        label="trials",
        value=formats.of_steps(len(study.trials), declared.trials),
        beside=f"{formats.grouped(over)} over",
    )
    if study.finished is None:
        slots = f"of {counted(declared.slots, 'slot')}"
        if declared.off_peak:
            slots += f"; runs start {declared.off_peak}"
        yield Tile(label="open now", value=f"{len(study.open_rungs)}", beside=slots)
    most = declared.max_device_hours
    yield Tile(
        label="device-hours",
        value=formats.number(study.device_s / HOUR_S),
        beside="of runs that are judged" if most is None else f"of at most {most:g}",
    )
    if study.cost or declared.max_cost is not None:
        most = declared.max_cost
        yield Tile(
            label="cost",
            value=f"{cost_text(study.cost)} {currency}".rstrip(),
            beside="" if most is None else f"of at most {cost_text(most)}",
        )


# --- what each key explains -----------------------------------------------------------------------


def _bar(each: Importance) -> Bar:
    low, high = each.best
    best = "best where it was not drawn" if low is None else f"best at {_value(low)}"
    if low is not None and low != high:
        best = f"best from {_value(low)} to {_value(high)}"
    return Bar(
        key=each.key,
        share=round(1000 * each.share),
        value=f"{100 * each.share:.0f} %",
        best=best if each.is_clear else "not more than chance",
        is_clear=each.is_clear,
    )


def _bars_words(found: Importances | None) -> str:
    if found is None:
        return "It is shown once ten trials of one budget have a value."
    return f"Of {found.count} trials at step {formats.grouped(found.steps)}. {METHOD}"


def _value(value: Json) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return formats.number(value) if isinstance(value, int) else f"{value:.3g}"


# --- budgets, failures ----------------------------------------------------------------------------


def _number(text: str) -> Cell:
    return Cell(text=text, is_number=True)


def _rung_section(study: StudyState) -> Section:
    found = rung_results(study) if len(study.declared.budgets) > 1 else []
    heads = ("at step", "judged", "given more", "stopped", "no value", "open", "best", "median")
    return Section(
        key="budgets",
        title="Budgets",
        heads=heads,
        rows=tuple(
            (
                _number(formats.grouped(each.steps)),
                *(
                    _number(f"{n}")
                    for n in (each.judged, each.on, each.stopped, each.failed, each.open)
                ),
                _number(formats.number(each.best)),
                _number(formats.number(each.middle)),
            )
            for each in found
        ),
    )


def _failure_section(study: StudyState) -> Section:
    found = failures(study)
    return Section(
        key="failed",
        title="Without a value",
        heads=("runs", "why", "which"),
        rows=tuple(
            (
                _number(f"{len(each.runs)}"),
                Cell(text="" if each.is_failed else "Not a number. ", soft=each.why),
                Cell(
                    text=each.runs[0],
                    address=f"/runs/{each.runs[0]}",
                    soft=_others(each.runs[1:]),
                ),
            )
            for each in found[:WHY_MAX]
        ),
    )


def _others(runs: Sequence[str]) -> str:
    more = len(runs) - RUNS_NAMED_MAX
    return ", ".join(runs[:RUNS_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


# --- the table ------------------------------------------------------------------------------------


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
        _number(_value(trial.config[k]) if k in trial.config else "") for k in study.declared.space
    ]
    cells += [_rung_cell(trial, each) for each in columns]
    if study.declared.repeat:
        spread = trial.mean_and_deviation
        cells.append(_number("" if spread is None else f"{spread[0]:.4g} ± {spread[1]:.2g}"))
    device_s = _device_s(trial)
    cells.append(_number(about(device_s) if device_s else ""))
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


# --- as a file, and all of them -------------------------------------------------------------------

FILE_HEADS = (
    *("trial", "status", "rung", "repeat", "run", "steps", "source", "outcome", "value"),
    *("device_s", "cost", "why"),
)


def study_csv(study: StudyState) -> str:
    """Return the runs of the trials as CSV, a line each, with a line of titles."""
    keys = list(study.declared.space)
    rows = (
        [*_file_row(trial, rung), *(rung.proposed.config.get(key) for key in keys)]
        for trial in study.trials
        for rung in (*trial.rungs, *trial.repeats)
    )
    return csv_text([[*FILE_HEADS, *keys], *rows])


def _file_row(trial: Trial, rung: Rung) -> list[Json]:
    proposed, judged = rung.proposed, rung.judged
    source = None if proposed.source is None else f"{proposed.source.run_id}@{proposed.source.step}"
    found = [trial.number, trial.status.value, proposed.rung, proposed.repeat, proposed.run_id]
    found += [proposed.steps, source]
    if judged is None:
        return [*found, None, None, None, None, None]
    stopped = trial.stopped.why if trial.stopped is not None and rung is trial.last else judged.why
    return [*found, judged.outcome, judged.value, judged.device_s, judged.cost, stopped]


def studies_view(rows: Sequence[Mapping[str, Json]], *, most: int, now: datetime) -> StudiesView:
    """Return the list of all studies, of which `most` were read."""
    heads = ("study", "state", "project", "best", "trials", "device-hours", "declared")
    cut = f" Only the newest {most} are shown." if len(rows) == most else ""
    is_open = sum(row["state"] == "open" for row in rows)
    summary = f"{len(rows)} of them, {is_open} open, the newest first.{cut}"
    return StudiesView(
        title="Studies",
        summary=summary if rows else "None yet: `tracks tune` in a project's folder declares one.",
        section=Section(
            key="all",
            title="All studies",
            heads=heads,
            rows=tuple(_study_cells(row, now) for row in rows),
        ),
        links=tuple(
            Link(label=kind, address=f"{PAGE}.{kind.lower()}") for kind in ("CSV", "JSON") if rows
        ),
    )


def _study_cells(row: Mapping[str, Json], now: datetime) -> tuple[Cell, ...]:
    state, hours = row["cause"] or row["state"], row["off_peak"]
    waits = wait_words(hours, now) if hours and row["state"] == "open" else ""
    value = row["best_value"]
    return (
        Cell(text=row["study"], address=f"{PAGE}/{row['study']}"),
        Cell(text=str(state).replace("_", " "), soft=waits),
        Cell(text=row["model_family"]),
        Cell(
            text="" if value is None else f"{row['metric']} {formats.number(value)}",
            address="" if value is None else f"/runs/{row['best_run_id']}",
        ),
        _number(f"{row['trial_count']} / {row['max_trials']}"),
        _number(formats.number(row["device_hours"])),
        Cell(text=str(row["declared_at"])[:16].replace("T", " ")),
    )


def studies_csv(rows: Sequence[Mapping[str, Json]]) -> str:
    """Return the list as CSV, with a line of titles."""
    return csv_text([rows[0] if rows else ["study"], *(row.values() for row in rows)])
