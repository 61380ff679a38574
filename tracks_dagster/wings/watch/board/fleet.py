"""The fleet: every open run in a line, what needs a person first. Pure: rows and readings to a view."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

from tracks_dagster.retry.caps import Cost
from tracks_dagster.review.lights import Colour
from tracks_dagster.review.run_filter import Run
from tracks_dagster.review.run_table import default_columns
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.lifecycle import RunLifecycle
from tracks_dagster.track.text.units import counted
from tracks_dagster.track.unforeseen import problem_of
from tracks_dagster.wings.watch.board import formats
from tracks_dagster.wings.watch.board.all_runs import AllRuns, Part, all_runs_view
from tracks_dagster.wings.watch.board.formats import LightMark, marks, unread
from tracks_dagster.wings.watch.board.reading import RunReading

SPARK_WIDTH, SPARK_HEIGHT, SPARK_MARGIN = 96, 22, 2  # pixels; board.css has them too
SPARK_POINTS_MAX = 25
NOTHING = (
    "No training run is open. `tracks run` in a project's folder starts one, and this page shows it by "
    "itself."
)

Row = Mapping[str, Json]  # of fleet.sql


class Group(StrEnum):
    """Where a run is listed, in the order of the page."""

    NEEDS_A_PERSON = "Needs a person"
    TRAINING = "Training"
    STARTING = "Starting"
    QUEUED = "Waiting for devices"
    ENDED = "Ended in the last 24 hours"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRow:
    """One run. share: of its steps, 0 to 1; spark: a path of its newest losses, "" without two;
    alert_colour: of what `now` warns of, "" for nothing."""

    run_id: str
    about: str
    lights: tuple[LightMark, ...]
    steps: str
    share: float | None
    loss: str
    spark: str
    pace: str
    left: str
    devices: str
    money: str
    now: str
    alert_colour: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetGroup:
    """The runs of one group."""

    title: str
    rows: tuple[FleetRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """The page. banners: sentences about the whole home; experiments: with
    the newest runs; studies: the newest; families: of the runs listed; each has a page.
    earlier: runs that ended before."""

    title: str
    summary: str
    groups: tuple[FleetGroup, ...]
    banners: tuple[str, ...]
    experiments: tuple[str, ...]
    families: tuple[str, ...]
    studies: tuple[str, ...] = ()
    earlier: AllRuns | None = None
    nothing: str = NOTHING


def fleet_view(
    rows: Sequence[Row],
    readings: Mapping[str, RunReading],
    *,
    problems: Mapping[str, str] | None = None,
    banners: Iterable[str] = (),
    experiments: Iterable[str] = (),
    earlier: Sequence[Run] = (),
) -> FleetView:
    """Return the page of `rows`, newest declaration first in each group.

    readings: of the open runs that were read in time; the others show what the ledger has.
    problems: why a run cannot be read. earlier: the newest of those that ended before.
    """
    found: dict[Group, list[FleetRow]] = {each: [] for each in Group}
    for row in rows:
        reading, problem = readings.get(row["run_id"]), (problems or {}).get(row["run_id"])
        if problem is None:
            try:
                group, shown = _group(row, reading), _row(row, reading)
            except Exception as error:  # noqa: BLE001 - of that run alone
                problem = problem_of(error)
        if problem is not None:
            group = Group.NEEDS_A_PERSON
            shown = replace(_row_of_ledger(row), now=problem, alert_colour="red")
        found[group].append(shown)
    devices = sum(each.devices for each in readings.values())
    return FleetView(
        title=_title(found),
        summary=_summary(found, devices, readings),
        groups=tuple(
            FleetGroup(title=group.value, rows=tuple(each)) for group, each in found.items() if each
        ),
        banners=tuple(banners),
        experiments=tuple(experiments),
        earlier=_earlier(earlier) if earlier else None,
        families=tuple(dict.fromkeys(str(row["model_family"]) for row in rows)),
    )


def _earlier(runs: Sequence[Run]) -> AllRuns:
    return all_runs_view(runs, default_columns(runs), {}, Part(size=len(runs)))


def _group(row: Row, reading: RunReading | None) -> Group:
    if row["finished_at"] is not None:
        return Group.ENDED
    if row["state"] != RunLifecycle.RUNNING:
        return Group.NEEDS_A_PERSON
    if reading is None:
        return Group.TRAINING
    if reading.queue is not None:
        return Group.QUEUED
    worst = reading.worst
    is_red = worst is not None and worst.colour is Colour.RED
    if is_red or reading.waits_for:
        return Group.NEEDS_A_PERSON
    return Group.STARTING if reading.is_starting else Group.TRAINING


def _row(row: Row, reading: RunReading | None) -> FleetRow:
    if reading is None:
        return _row_of_ledger(row)
    worst, pace = reading.worst, reading.pace
    colour = "" if worst is None else worst.colour.value
    return FleetRow(
        run_id=row["run_id"],
        about=_about(row),
        lights=marks(reading.lights),
        steps=formats.of_steps(reading.step, reading.steps),
        share=reading.share,
        loss=formats.number(reading.loss),
        spark=sparkline([loss for _, loss in reading.losses]),
        pace=formats.pace(None if pace is None else pace.step_s),
        left=formats.left(reading.left),
        devices=str(reading.devices or formats.UNKNOWN),
        money=formats.money(reading.cost),
        now=_now(reading),
        alert_colour="red" if reading.waits_for and reading.queue is None else colour,
    )


def _row_of_ledger(row: Row) -> FleetRow:
    """Return the line of a run that has ended, or whose journal was not read in time."""
    is_over = row["finished_at"] is not None
    step, steps = row["recorded_step"], row["max_steps"]
    promoted = f" Promoted to {row['promoted_to']}." if row["promoted_to"] else ""
    return FleetRow(
        run_id=row["run_id"],
        about=_about(row),
        lights=() if is_over else unread(),
        steps=formats.of_steps(step, steps),
        share=None if is_over or not steps else min(1.0, (step or 0) / steps),
        loss=formats.UNKNOWN,
        spark="",
        pace=formats.UNKNOWN,
        left=formats.UNKNOWN,
        devices=formats.UNKNOWN,
        money=formats.UNKNOWN,
        now=f"{row['state']}: {row['state_why']}{promoted}" if is_over else row["state_why"],
    )


def _about(row: Row) -> str:
    ranks = counted(row["ranks"], "rank")
    parts = (row["model_family"], row["workload_class"], row["owner"], ranks)
    return " · ".join(str(each) for each in parts if each)


def _now(reading: RunReading) -> str:
    """Return the one sentence that matters most."""
    if reading.waits_for:
        return reading.waits_for
    worst = reading.worst
    if worst is not None:
        return worst.sentence
    return reading.queue or reading.status.why


def _title(found: Mapping[Group, Sequence[FleetRow]]) -> str:
    open_count = sum(len(found[each]) for each in Group if each is not Group.ENDED)
    if not open_count:
        return "Nothing is training"
    needs = len(found[Group.NEEDS_A_PERSON])
    tail = "" if not needs else f", {needs} {'needs' if needs == 1 else 'need'} a person"
    return f"{counted(open_count, 'open run')}{tail}"


def _summary(
    found: Mapping[Group, Sequence[FleetRow]],
    devices: int,
    readings: Mapping[str, RunReading],
) -> str:
    parts = [f"{counted(devices, 'device')} at work"]
    spent = total_cost(reading.cost for reading in readings.values())
    if spent is not None and spent.amount > 0:
        parts.append(f"{formats.money(spent)} so far for the runs that are open")
    if found[Group.QUEUED]:
        parts.append(f"{len(found[Group.QUEUED])} in the queue")
    return " · ".join(parts)


def total_cost(costs: Iterable[Cost | None]) -> Cost | None:
    """Return the sum; None where no cost is known."""
    known = [each for each in costs if each is not None]
    if not known:
        return None
    return Cost(
        amount=sum(each.amount for each in known),
        currency=known[0].currency,
        unpriced_s=sum(each.unpriced_s for each in known),
    )


def sparkline(values: Sequence[float]) -> str:
    """Return the newest values as the path of a line of pixels; "" where there are fewer than two.

    In whole numbers, each place from the one before it: a page has hundreds of lines.
    """
    shown = [each for each in values[-SPARK_POINTS_MAX:] if math.isfinite(each)]
    if len(shown) < 2:
        return ""
    low, high = min(shown), max(shown)
    tall = SPARK_HEIGHT - 2 * SPARK_MARGIN
    spread = high - low or 1.0
    places = [SPARK_MARGIN + round(tall * (high - each) / spread) for each in shown]
    right = SPARK_WIDTH // (len(places) - 1)
    steps = " ".join(f"{right} {place - before}" for before, place in pairwise(places))
    return f"M0 {places[0]}l{steps}".replace(" -", "-")
