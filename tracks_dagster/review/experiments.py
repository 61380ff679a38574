"""An experiment: runs that ask one question, a baseline, and what each other run changed. Pure.

Runs belong to it by the name that they were declared with. `review.effects.experiments` reads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tracks_dagster.track.records import Json

Settings = Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentRun:
    """A run as the ledger has it.

    settings: config, code, snapshot and ranks of its newest attempt, which a retry may have changed.
    environment, experiment, baseline: as declared; {} and None where it is not known. metric, value,
    direction: of its newest decision on a promotion, else of its newest eval, whose direction nobody
    knows; measured: how, for only what was measured alike is compared.
    """

    run_id: str
    owner: str
    state: str
    steps: int | None
    settings: Settings
    branched_from: str | None
    device_s: float
    alias: str | None
    metric: str | None
    value: float | None
    direction: str | None
    measured: tuple[Json, ...] = ()
    experiment: str | None = None
    baseline: str | None = None
    environment: Settings = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One setting in which a run differs from the baseline; None on the side that lacks it."""

    name: str
    before: Json
    after: Json


def baseline_of(runs: Sequence[ExperimentRun], wanted: str = "") -> tuple[ExperimentRun, str]:
    """Return the run that the others are compared with, and why that one.

    runs: oldest first, at least one. The one that is asked for, else the one that was named as baseline
    last, else the newest that was promoted, else the oldest.
    """
    by_id = {run.run_id: run for run in runs}
    if wanted in by_id:
        return by_id[wanted], "as you chose"
    naming = next((run for run in reversed(runs) if run.baseline in by_id), None)
    if naming is not None and naming.baseline is not None:
        return by_id[naming.baseline], f"named by {naming.run_id}"
    promoted = next((run for run in reversed(runs) if run.alias), None)
    if promoted is not None:
        return promoted, f"the newest that was promoted, to {promoted.alias}"
    return runs[0], "the oldest: none was promoted yet"


def outside(run: ExperimentRun, name: str, runs: Sequence[ExperimentRun]) -> str:
    """Say that a run is no part of the experiment `name`, as a baseline may be; "" where it is, and
    where the name is a model family's."""
    if run.experiment == name or all(each.experiment != name for each in runs):
        return ""
    return f"outside: {'of no experiment' if run.experiment is None else f'of {run.experiment}'}"


def differing(given: Sequence[Settings]) -> list[str]:
    """Return the names whose values are not the same everywhere, in the order of the first."""
    names = dict.fromkeys(name for each in given for name in each)
    missing = object()
    return [
        name
        for name in names
        if any(each.get(name, missing) != given[0].get(name, missing) for each in given[1:])
    ]


def changes(run: ExperimentRun, baseline: ExperimentRun) -> tuple[Change, ...]:
    """Return the settings in which the run differs from the baseline."""
    a, b = dict(baseline.settings), dict(run.settings)
    if baseline.environment and run.environment:
        a, b = {**baseline.environment, **a}, {**run.environment, **b}
    return tuple(
        Change(name=name, before=a.get(name), after=b.get(name)) for name in differing((a, b))
    )


def difference(run: ExperimentRun, baseline: ExperimentRun) -> tuple[float, str] | None:
    """Return how far its metric is from the baseline's, and "good", "bad" or "" where nobody knows.

    None where they were not measured alike, by the same eval on the same data with the same seed.
    """
    is_alike = run.metric is not None and (run.metric, run.measured) == (
        baseline.metric,
        baseline.measured,
    )
    if run is baseline or not is_alike or run.value is None or baseline.value is None:
        return None
    off = run.value - baseline.value
    if off == 0 or run.direction is None:
        return off, ""
    return off, "good" if (off < 0) == (run.direction == "min") else "bad"
