"""The page of a study, and the list of all. Pure: a study's fold, or rows of the ledger, to a view."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote, urlencode

from tracks_dagster.studies.deciding import COMPLETE
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
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.study_state import HOUR_S, Rung, StudyState, Trial, TrialStatus
from tracks_dagster.track.text.safe_text import csv_text
from tracks_dagster.track.text.units import cost_text, counted
from tracks_dagster.wings.watch.board import formats
from tracks_dagster.wings.watch.board.record import Cell, Section
from tracks_dagster.wings.watch.board.run_page import Key, Link, Panel, Tile
from tracks_dagster.wings.watch.board.trial_table import (
    RUNGS_MAX,
    Asked,
    TrialTable,
    number_cell,
    shown_value,
    trial_table,
)

PAGE = "/studies"
COMPARED = 5  # of the best trials, by one link
WHY_MAX = 40  # reasons of failures
RUNS_NAMED_MAX = 5  # of one reason
METHOD = (
    "Each key by itself: trials are ranked by their value and parted by the key into up to five "
    "groups; the share of their ranks that the groups explain is Kruskal and Wallis' epsilon squared, "
    "0 where a key has no effect. What two keys do together is not seen, and a search that learns "
    "looks where it is good, so that a key which mattered may look small. Pale is what may be chance: "
    "of keys without any effect 5 in 100 show more."
)


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
    trials: TrialTable


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
    found = importances(study)
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
        trials=trial_table(study, ordered, asked, page),
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
    best = "best where it was not drawn" if low is None else f"best at {shown_value(low)}"
    if low is not None and low != high:
        best = f"best from {shown_value(low)} to {shown_value(high)}"
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


# --- budgets, failures ----------------------------------------------------------------------------


def _rung_section(study: StudyState) -> Section:
    found = rung_results(study) if len(study.declared.budgets) > 1 else []
    heads = ("at step", "judged", "given more", "stopped", "no value", "open", "best", "median")
    return Section(
        key="budgets",
        title="Budgets",
        heads=heads,
        rows=tuple(
            (
                number_cell(formats.grouped(each.steps)),
                *(
                    number_cell(f"{n}")
                    for n in (each.judged, each.on, each.stopped, each.failed, each.open)
                ),
                number_cell(formats.number(each.best)),
                number_cell(formats.number(each.middle)),
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
                number_cell(f"{len(each.runs)}"),
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
        number_cell(f"{row['trial_count']} / {row['max_trials']}"),
        number_cell(formats.number(row["device_hours"])),
        Cell(text=str(row["declared_at"])[:16].replace("T", " ")),
    )


def studies_csv(rows: Sequence[Mapping[str, Json]]) -> str:
    """Return the list as CSV, with a line of titles."""
    return csv_text([rows[0] if rows else ["study"], *(row.values() for row in rows)])
