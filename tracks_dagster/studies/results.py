"""What a study has come to: its trials in order, its readings, its rungs, what each key explains. Pure.

The importance of a key is a measure of our own that needs no library. It looks at one key at a time:
trials are ranked by their value, and parted by the key into groups; Kruskal and Wallis' H (1952) says
how far the groups' mean ranks are apart. As a share: epsilon squared, (H - k + 1) / (n - k) of k groups
of n trials, which is 0 on average where the key has no effect (Kelley 1935). By groups and not by a
line, so that a key with its best in the middle, as most learning rates, is seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from statistics import fmean, median

from tracks_dagster.studies.search import space_of
from tracks_dagster.studies.space import CHOICE, Param
from tracks_dagster.track.bodies import FAILED, MEASURED, TrialJudged
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.study_state import HOUR_S, Rung, StudyState, Trial, TrialStatus

TRIALS_MIN = 10  # that an importance is of
GROUPS = 5  # of a key with more values than these
CHANCE = 1.645  # of a normal distribution, what 5 of 100 are above
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


def in_order(study: StudyState) -> list[Trial]:
    """Return the trials, the best one first: those that came furthest first, the best of these first;
    failed ones last."""
    best = study.best

    def place(trial: Trial) -> tuple[bool, bool, int, float, int]:
        measured = measured_of(trial)
        loss = study.loss_of(measured[-1]) if measured else math.inf
        is_failed = trial.status is TrialStatus.FAILED
        return (best is not trial, is_failed, -len(measured), loss, trial.number)

    return sorted(study.trials, key=place)


def measured_of(trial: Trial) -> list[TrialJudged]:
    """Return what the runs of a trial came to that have a value, without its repeats."""
    judged = (rung.judged for rung in trial.rungs if rung.judged is not None)
    return [each for each in judged if each.outcome == MEASURED]


def lineage_of(study: StudyState) -> list[Rung]:
    """Return the runs that the best trial's checkpoint comes from, its own first; a copy of another's
    weights leads to that one's runs."""
    best = study.best
    if best is None:
        return []
    by_run = {rung.proposed.run_id: rung for t in study.trials for rung in t.rungs}
    found = [_newest_value(best)]
    while (source := found[-1].proposed.source) is not None and source.run_id in by_run:
        found.append(by_run[source.run_id])  # always of the budget before
    return found


def _newest_value(trial: Trial) -> Rung:
    measured = [r for r in trial.rungs if r.judged is not None and r.judged.outcome == MEASURED]
    return measured[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A run that was judged. hours: device-hours of all runs of the study that were judged by then."""

    trial: int
    rung: int
    run_id: str
    value: float
    hours: float


def readings(study: StudyState) -> list[Reading]:
    """Return the values in the order in which they were judged, without those of repeats."""
    runs = [
        (rung.judged_at or _LONG_AGO, rung.seq, rung.judged, rung.proposed.repeat)
        for trial in study.trials
        for rung in (*trial.rungs, *trial.repeats)
        if rung.judged is not None
    ]
    found, used_s = [], 0.0
    for _, _, judged, repeat in sorted(runs, key=lambda each: each[:2]):
        used_s += judged.device_s
        if judged.value is not None and repeat is None:
            found.append(
                Reading(
                    trial=judged.trial,
                    rung=judged.rung,
                    run_id=judged.run_id,
                    value=judged.value,
                    hours=used_s / HOUR_S,
                )
            )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RungResult:
    """One budget. stopped: judged there and given no more; on: that were given the next budget; best,
    middle: of the values there, None without one."""

    rung: int
    steps: int
    open: int
    judged: int
    on: int
    stopped: int
    failed: int
    best: float | None
    middle: float | None


def rung_results(study: StudyState) -> list[RungResult]:
    """Return what became of the trials at each budget that one was given."""
    found = []
    for number, steps in enumerate(study.declared.budgets):
        there = [each for each in study.trials if number < len(each.rungs)]
        if not there:
            break
        judged = [(t, j) for t in there if (j := t.rungs[number].judged) is not None]
        values = [j.value for _, j in judged if j.value is not None]
        best = min if study.declared.direction == "min" else max
        found.append(
            RungResult(
                rung=number,
                steps=steps,
                open=len(there) - len(judged),
                judged=len(judged),
                on=sum(len(t.rungs) > number + 1 for t in there),
                stopped=sum(
                    t.status is TrialStatus.STOPPED and len(t.rungs) == number + 1 for t in there
                ),
                failed=sum(j.outcome != MEASURED for _, j in judged),
                best=best(values) if values else None,
                middle=median(values) if values else None,
            )
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Runs that ended without a value for the same reason. is_failed: not a number where False."""

    why: str
    is_failed: bool
    runs: tuple[str, ...]


def failures(study: StudyState) -> list[Failure]:
    """Return why runs of the study have no value, the most frequent reason first."""
    by_why: dict[tuple[str, str], list[str]] = {}
    for trial in study.trials:
        for rung in (*trial.rungs, *trial.repeats):
            judged = rung.judged
            if judged is not None and judged.outcome != MEASURED:
                by_why.setdefault((judged.why, judged.outcome), []).append(judged.run_id)
    found = [
        Failure(why=why, is_failed=outcome == FAILED, runs=tuple(runs))
        for (why, outcome), runs in by_why.items()
    ]
    return sorted(found, key=lambda each: -len(each.runs))


# --- what each key explains -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Importance:
    """How much of the trials' ranks a key explains by itself.

    share: 0 to 1; is_clear: of keys without an effect 5 in 100 have so much; best: from which value to
    which the mean rank is best.
    """

    key: str
    share: float
    is_clear: bool
    best: tuple[Json, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class Importances:
    """The keys, the most important first. steps: at which budget; count: of how many trials."""

    steps: int
    count: int
    keys: tuple[Importance, ...]


def importances(study: StudyState) -> Importances | None:
    """Return what each key of the space explains, at the furthest budget that half of the trials came
    to; None where fewer than TRIALS_MIN were judged there."""
    rungs = [
        [r for t in study.trials if number < len(t.rungs) and _has_rank(r := t.rungs[number])]
        for number in range(len(study.declared.budgets))
    ]
    judged = next((each for each in reversed(rungs) if 2 * len(each) >= len(rungs[0])), [])
    if len(judged) < TRIALS_MIN:
        return None
    losses = [study.loss_of(rung.judged) for rung in judged if rung.judged is not None]
    ranks = ranks_of(losses)
    found = [
        one
        for key, param in space_of(study.declared).params.items()
        if (one := _importance(key, param, judged, ranks)) is not None
    ]
    return Importances(
        steps=judged[0].proposed.steps,
        count=len(judged),
        keys=tuple(sorted(found, key=lambda each: -each.share)),
    )


def _has_rank(rung: Rung) -> bool:
    return rung.judged is not None and rung.judged.outcome != FAILED


def ranks_of(losses: Sequence[float]) -> list[float]:
    """Return the place of each, from 1, the least first; equal ones share the mean of their places."""
    ordered = sorted(range(len(losses)), key=losses.__getitem__)
    ranks, place = [0.0] * len(losses), 1
    for _, same in groupby(ordered, key=losses.__getitem__):
        members = list(same)
        for each in members:
            ranks[each] = place + (len(members) - 1) / 2
        place += len(members)
    return ranks


def _importance(
    key: str, param: Param, judged: Sequence[Rung], ranks: Sequence[float]
) -> Importance | None:
    values = [rung.proposed.config.get(key) for rung in judged]
    groups = _grouped(values, param)
    count, middle = len(ranks), fmean(ranks)
    if not 2 <= len(groups) < count:
        return None
    means = {name: fmean(ranks[i] for i in members) for name, members in groups.items()}
    between = sum(len(groups[name]) * (mean - middle) ** 2 for name, mean in means.items())
    whole = sum((rank - middle) ** 2 for rank in ranks)
    h = (count - 1) * between / whole if whole else 0.0
    freedom = len(groups) - 1
    best = [values[i] for i in groups[min(means, key=lambda name: means[name])]]
    return Importance(
        key=key,
        share=max(0.0, (h - freedom) / (count - len(groups))),
        is_clear=h > _chance(freedom),
        best=(best[0], best[0]) if param.kind == CHOICE else _ends(best),
    )


def _chance(freedom: int) -> float:
    """Return what 5 of 100 draws of chi squared are above, by Wilson and Hilferty (1931): 9.5 for 4."""
    part = 2 / (9 * freedom)
    return freedom * (1 - part + CHANCE * math.sqrt(part)) ** 3


def _ends(values: Iterable[Json]) -> tuple[Json, Json]:
    drawn = [each for each in values if each is not None]
    return (min(drawn), max(drawn)) if drawn else (None, None)


def _grouped(values: Sequence[Json], param: Param) -> Mapping[Hashable, list[int]]:
    """Return the places of trials by the value of a key; a range of many values in GROUPS of about as
    many trials. A key that was not drawn is a group of its own."""
    if param.kind == CHOICE or len({repr(each) for each in values}) <= GROUPS:
        return _by(values, lambda place: repr(values[place]))
    order = ranks_of([math.inf if each is None else float(each) for each in values])
    drawn = sum(each is not None for each in values)

    def fifth(place: int) -> Hashable:
        if values[place] is None:
            return None
        return min(GROUPS - 1, int((order[place] - 0.5) * GROUPS / drawn))

    return _by(values, fifth)


def _by(values: Sequence[Json], name_of: Callable[[int], Hashable]) -> Mapping[Hashable, list[int]]:
    found: dict[Hashable, list[int]] = {}
    for place in range(len(values)):
        found.setdefault(name_of(place), []).append(place)
    return found
