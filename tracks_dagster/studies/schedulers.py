"""Who of a study's trials gets more steps: a function each, from the study's fold to one move. Pure.

A trial is judged at the study's budgets and paused there. A scheduler says of one paused trial that it
goes on, from whose checkpoint and with which config, or that it is stopped; None: it has no move now,
and a new trial may begin. `is_whole`: no trial is proposed before it moves, for all are, or the search
waits. It then moves each that is paused once no run is open, so that every trial comes to an end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median as median_of

from tracks_dagster.studies.search import generation_of, generator, space_of
from tracks_dagster.studies.space import LOGUNIFORM, UNIFORM, Config, Space
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.study_state import StudyState, Trial, TrialStatus

ETA = 3  # Jamieson and Talwalkar 2016, Li et al. 2018: of each rung one third goes on
MEDIAN_OTHERS_MIN = 3  # trials that a median is taken of; fewer stop nobody
COPIED_SHARE = 4  # PBT, Jaderberg et al. 2017: the worst quarter copies the best
FACTORS = (0.8, 1.2)
PERTURB = "perturb"  # of a study's scheduler: the keys that pbt changes


@dataclass(frozen=True, slots=True, kw_only=True)
class GoOn:
    """A trial gets the steps up to its next budget. source: the trial whose checkpoint it continues."""

    trial: int
    source: int
    config: Config
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A trial gets no further steps."""

    trial: int
    why: str


Move = GoOn | Stop
Scheduler = Callable[[StudyState, bool], Move | None]


def fifo(study: StudyState, is_whole: bool) -> Move | None:
    """Every trial trains to its end, in the order of their numbers."""
    return next((_go_on(each, "the next budget") for each in _paused(study)), None)


def median(study: StudyState, is_whole: bool) -> Move | None:
    """Stop a trial that is worse than the median of the others at the same step."""
    for trial in _paused(study):
        rung = len(trial.rungs) - 1
        own = _loss(study, trial, rung)
        others = [_loss(study, t, rung) for t in _judged(study, rung) if t.number != trial.number]
        if len(others) < MEDIAN_OTHERS_MIN:
            return _go_on(trial, f"only {len(others)} others came to this step")
        middle = median_of(others)
        if own > middle:
            worse = f"{_shown(study, own)} is worse than the median {_shown(study, middle)}"
            return Stop(trial=trial.number, why=f"{worse} of {len(others)}")
        return _go_on(trial, f"{_shown(study, own)} is not worse than the median of {len(others)}")
    return None


def halving(study: StudyState, is_whole: bool) -> Move | None:
    """Of each rung, once all of it is judged, the best 1/eta go on and the rest is stopped."""
    found = _whole_rung(study) if is_whole else None
    if found is None:
        return None
    rung, ranked = found
    keep = max(1, len(ranked) // _eta(study))
    for place, trial in enumerate(ranked):
        if _is_paused_at(trial, rung):
            at = trial.last.proposed.steps
            why = f"place {place + 1} of {len(ranked)} at step {at}; {keep} go on"
            return _go_on(trial, why) if place < keep else Stop(trial=trial.number, why=why)
    return None


def asha(study: StudyState, is_whole: bool) -> Move | None:
    """A trial goes on as soon as it is among the best 1/eta of those judged at its step so far.

    The asynchronous halving of Li et al. 2020: nobody waits for a rung, and some go on that a whole
    rung would have stopped. Once no further trial will be judged at a rung, the rest of it is stopped;
    of one with fewer than eta, the best goes on.
    """
    is_last = is_whole and not study.open_rungs
    for least in (0, 1) if is_last else (0,):
        for rung in range(len(study.declared.budgets) - 2, -1, -1):
            ranked = _ranked(study, rung)
            keep = max(least, len(ranked) // _eta(study))
            for place, trial in enumerate(ranked[:keep]):
                if _is_paused_at(trial, rung):
                    return _go_on(trial, f"place {place + 1} of {len(ranked)} judged so far")
    return next((_left(study, each) for each in _paused(study)), None) if is_last else None


def pbt(study: StudyState, is_whole: bool) -> Move | None:
    """At each budget the worst quarter continues from the best's weights, with a changed config."""
    found = _whole_rung(study) if is_whole else None
    if found is None:
        return None
    rung, ranked = found
    ranked = [
        each for each in ranked if not math.isinf(_loss(study, each, rung))
    ]  # none that failed
    count = min(max(1, len(ranked) // COPIED_SHARE), len(ranked) // 2)
    for place, trial in enumerate(ranked):
        if not _is_paused_at(trial, rung):
            continue
        if place < len(ranked) - count:
            return _go_on(trial, f"place {place + 1} of {len(ranked)}")
        return _copied(study, trial, ranked[len(ranked) - 1 - place], rung)
    return None


SCHEDULERS: Mapping[str, Scheduler] = {
    "fifo": fifo,
    "median": median,
    "halving": halving,
    "asha": asha,
    "pbt": pbt,
}


def move_of(study: StudyState, *, is_whole: bool) -> Move | None:
    """Return the next move of the study's scheduler; None where it has none."""
    return SCHEDULERS[study.declared.scheduler["kind"]](study, is_whole)


def perturbed(space: Space, scheduler: Mapping[str, Json]) -> list[str]:
    """Return the keys that pbt changes: those that the study names, else the ranges of numbers that are
    not whole. A checkpoint of other `layers` cannot be loaded, and whole numbers may be such."""
    named = scheduler.get(PERTURB)
    ranges = [name for name, each in space.params.items() if each.kind in (UNIFORM, LOGUNIFORM)]
    return ranges if named is None else list(named)


def _copied(study: StudyState, trial: Trial, better: Trial, rung: int) -> Move:
    """Return that a trial continues a better one's weights, with that one's config but for those keys
    alone that are changed; none is added or left out."""
    space = space_of(study.declared)
    rng = generator(study.declared, "copy", trial.number, rung)
    source = better.rungs[rung].proposed.config
    names = set(perturbed(space, study.declared.scheduler))
    drawn = {name: rng.choice(FACTORS) for name in source}
    moved = space.scaled(source, lambda name: drawn[name] if name in names else 1.0, rng)
    config: Config = source
    changed = " and with its config, of which nothing can be changed"
    if moved is not None and moved.keys() == source.keys() and moved != source:
        config, keys = moved, [name for name in source if moved[name] != source[name]]
        changed = f", with {', '.join(keys)} changed by × 0.8 or × 1.2"
    why = f"it is among the worst, and continues from trial {better.number}{changed}"
    return GoOn(trial=trial.number, source=better.number, config=config, why=why)


def _go_on(trial: Trial, why: str) -> Move:
    return GoOn(trial=trial.number, source=trial.number, config=trial.config, why=why)


def _left(study: StudyState, trial: Trial) -> Move:
    ranked = _ranked(study, len(trial.rungs) - 1)
    place, at = ranked.index(trial) + 1, trial.last.proposed.steps
    keep = max(1, len(ranked) // _eta(study))
    why = f"place {place} of {len(ranked)} at step {at}; the best {keep} go on"
    return Stop(trial=trial.number, why=why)


def _is_paused_at(trial: Trial, rung: int) -> bool:
    return trial.status is TrialStatus.PAUSED and len(trial.rungs) == rung + 1


def _paused(study: StudyState) -> list[Trial]:
    return [each for each in study.trials if each.status is TrialStatus.PAUSED]


def _judged(study: StudyState, rung: int) -> list[Trial]:
    return [each for each in study.trials if each.judged_at(rung) is not None]


def _whole_rung(study: StudyState) -> tuple[int, Sequence[Trial]] | None:
    """Return the lowest rung with a paused trial, and the trials of its generation that were judged
    there, the best first; None while a run is open there or below."""
    paused = _paused(study)
    if not paused:
        return None
    first = min(paused, key=lambda each: len(each.rungs))
    rung, declared = len(first.rungs) - 1, study.declared
    if any(each.proposed.rung <= rung for each in study.open_rungs):
        return None
    generation = generation_of(declared, first.number)
    ranked = _ranked(study, rung)
    return rung, [t for t in ranked if generation_of(declared, t.number) == generation]


def _ranked(study: StudyState, rung: int) -> Sequence[Trial]:
    """Return all that were judged at a rung, the best first; what failed there comes last."""
    return sorted(_judged(study, rung), key=lambda each: (_loss(study, each, rung), each.number))


def _loss(study: StudyState, trial: Trial, rung: int) -> float:
    judged = trial.judged_at(rung)
    assert judged is not None, "it was judged there"
    return study.loss_of(judged)


def _eta(study: StudyState) -> int:
    return int(study.declared.scheduler.get("eta", ETA))


def _shown(study: StudyState, loss: float) -> str:
    return f"{loss if study.declared.direction == 'min' else -loss:g}"
