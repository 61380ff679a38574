"""An experiment: runs that ask one question, a baseline, and what each other run changed. Pure.

Runs belong to it by the name that they were declared with. `review.effects.experiments` reads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tracks_dagster.review.comparing import Score, compare_scores, own_values
from tracks_dagster.track.records import Json
from tracks_dagster.track.text.units import counted

EXPERIMENT_RUNS_MAX = 200  # of one that are shown: the newest

Settings = Mapping[str, Json]


def eval_title(suite: str, metric: str) -> str:
    """Return the name of an eval's metric, as no metric of the training is called."""
    return f"eval {suite} {metric}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredBy:
    """What runs are compared by. direction: min or max, None where nobody knows."""

    suite: str
    metric: str
    direction: str | None

    @property
    def title(self) -> str:
        """Its name, which no metric of the training has."""
        return eval_title(self.suite, self.metric)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a run measured beside the baseline. step: of the checkpoint; difference: of the baseline's,
    None where they were not measured alike; verdict: good, bad, or "" where nobody knows."""

    value: float
    step: int
    difference: float | None
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentRun:
    """A run as the ledger has it.

    settings: config, code, snapshot and ranks of its newest attempt, which a retry may have changed.
    environment, experiment, baseline: as declared; {} and None where it is not known. rule: what its
    promotion asks for, None without one. scores: its completed evals, of each suite those of the newest
    checkpoint that has one and was not quarantined. trained: the losses that training reported at the
    newest commit, which are those of the one step `trained_step`.
    """

    run_id: str
    owner: str
    state: str
    steps: int | None
    settings: Settings
    branched_from: str | None
    device_s: float
    alias: str | None
    final_step: int | None = None
    rule: MeasuredBy | None = None
    scores: tuple[Score, ...] = ()
    trained: Mapping[str, float] = field(default_factory=dict)
    trained_step: int | None = None
    experiment: str | None = None
    baseline: str | None = None
    environment: Settings = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Runs of an experiment, or of a family. runs: oldest first, the newest of it, with the baseline
    and what else was named; why: that baseline; count: of all runs that it has; newest: of these, how
    many are among `runs` for being the newest."""

    runs: tuple[ExperimentRun, ...]
    baseline: ExperimentRun
    why: str
    count: int
    newest: int

    @property
    def words(self) -> str:
        """How many runs it has, and how many of them are shown."""
        runs = counted(self.count, "run")
        return runs if self.newest >= self.count else f"the newest {self.newest} of {runs}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One setting in which a run differs from the baseline; None on the side that lacks it."""

    name: str
    before: Json
    after: Json


def baseline_of(runs: Sequence[ExperimentRun], wanted: str = "") -> tuple[ExperimentRun, str]:
    """Return the run that the others are compared with, and why that one.

    runs: oldest first, at least one. The one that is asked for, which is among them, else the one that
    was named as baseline last, else the newest that was promoted, else the oldest.
    """
    by_id = {run.run_id: run for run in runs}
    if wanted:
        return by_id[wanted], "as you chose"
    naming = next((run for run in reversed(runs) if run.baseline in by_id), None)
    if naming is not None and naming.baseline is not None:
        return by_id[naming.baseline], f"named by {naming.run_id}"
    promoted = next((run for run in reversed(runs) if run.alias), None)
    if promoted is not None:
        return promoted, f"the newest that was promoted, to {promoted.alias}"
    return runs[0], "the oldest: none was promoted yet"


def outside(run: ExperimentRun, name: str, runs: Sequence[ExperimentRun]) -> str:
    """Say that a run is not a part of the experiment `name`, as a baseline may be; "" where it is, and
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


def measured_by(runs: Sequence[ExperimentRun], baseline: ExperimentRun) -> MeasuredBy | None:
    """Return what the runs are compared by; None where nothing was measured.

    What the baseline's rule asks for, else another run's; without a rule the first eval of the
    baseline, or of another run: its loss, else its first metric.
    """
    order = (baseline, *(run for run in runs if run is not baseline))
    rule = next((run.rule for run in order if run.rule is not None), None)
    if rule is not None:
        return rule
    score = next((each for run in order for each in run.scores if each.metrics), None)
    if score is None:
        return None
    metric = "loss" if "loss" in score.metrics else min(score.metrics)
    return MeasuredBy(suite=score.suite, metric=metric, direction=None)


def result(run: ExperimentRun, baseline: ExperimentRun, by: MeasuredBy | None) -> Result | None:
    """Return what the run's own eval measured, and whether that is better than the baseline's.

    None where it was not measured. Of two steps neither is called better, unless each is the last of
    its run.
    """
    found = None if by is None else own_values(run.scores).get((by.suite, by.metric))
    if by is None or found is None:
        return None
    lines = () if run is baseline else compare_scores(baseline.scores, run.scores)
    line = next((x for x in lines if (x.suite, x.metric) == (by.suite, by.metric)), None)
    if line is None or line.b is None or line.difference is None:
        return Result(value=found[0], step=found[1], difference=None, verdict="")
    step, off = found[1], line.difference
    other = own_values(baseline.scores)[by.suite, by.metric][1]
    is_alike = step == other or (step, other) == (run.final_step, baseline.final_step)
    verdict = ""
    if off and is_alike and by.direction is not None:
        verdict = "good" if (off < 0) == (by.direction == "min") else "bad"
    return Result(value=line.b.mean, step=step, difference=off, verdict=verdict)
