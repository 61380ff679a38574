"""What follows on a study: the next record of its track, or what it waits for. Pure.

`effects.deciding` reads the runs, asks here, and records the answer. Every run of a trial is declared
after the record that proposes it, so that a caller who dies between the two leaves a name and no doubt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

from tracks_dagster.studies.schedulers import GoOn, Move, Stop, move_of
from tracks_dagster.studies.search import Search, Waits, proposal
from tracks_dagster.studies.space import Config
from tracks_dagster.track import names
from tracks_dagster.track.bodies import (
    FAILED,
    StudyFinished,
    TrialProposed,
    TrialStopped,
)
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.states.study_state import HOUR_S, StudyState, Trial, TrialStatus
from tracks_dagster.track.text.units import cost_text

COMPLETE, DEVICE_HOURS, MONEY, ALL_FAILED, USER = (
    *("complete", "device_hours", "money", "all_failed", "user"),
)
FAILED_FIRST_MAX = 3  # trials that fail before any was measured: then the study is what is wrong
BY = names.TUNE_STUDIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What all runs of a study have used, the open ones so far. running: ids of those that train, or
    may do so without anybody's word; waiting: of those that a person has to do something about."""

    device_s: float
    cost: float
    running: Collection[str]
    waiting: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Drain:
    """Its open runs save and wait, for the study is at its end."""

    why: str


Answer = TrialProposed | TrialStopped | StudyFinished | Drain | Waits | None


def decide(
    study: StudyState, spent: Spent, search: Callable[[], Search], *, closed: Waits | None = None
) -> Answer:
    """Return the next record of a study whose open runs are judged as far as they can be.

    search: makes the search, where a config is to be proposed; raises InvalidInput where it cannot.
    closed: why no run may start now. None is returned where it is finished.
    """
    if study.finished is not None:
        return None
    ends = _why_it_ends(study, spent)
    if ends is not None:
        cause, why = ends
        return Drain(why) if spent.running else _finished(study, spent, cause, why)
    is_whole = len(study.trials) >= study.declared.trials
    move = move_of(study, is_whole=is_whole)
    if isinstance(move, Stop):
        return _moved(study, spent, move)
    if closed is not None and (move or not is_whole or _repeat(study)):
        return closed  # before a proposal is computed, which takes long after many trials
    if move is not None:
        return _moved(study, spent, move)
    if not _has_slot(study):
        return _waits(study, spent)
    config = None if is_whole else _proposal(search(), study)
    if config is not None and not isinstance(config, Waits):
        number = len(study.trials)
        return TrialProposed(
            trial=number,
            rung=0,
            run_id=run_id_of(study.declared.study, number, 0),
            config=config,
            steps=study.declared.budgets[0],
            why=f"Trial {number} of {study.declared.trials}, by {study.declared.search['kind']}.",
            decided_by=BY,
        )
    if not is_whole and (move := move_of(study, is_whole=True)) is not None:
        # What is paused goes on or ends, and the search may go on then.
        return _moved(study, spent, move)
    if (repeat := _repeat(study)) is not None:  # also where the search waits or has ended in words
        return repeat
    if study.open_rungs:
        return config or _waits(study, spent)
    return _finished(study, spent, COMPLETE, _all_over(study, config))


def _proposal(search: Search, study: StudyState) -> Config | Waits | None:
    """Return the next config; where the search finds none, its words: what was proposed goes on."""
    try:
        return proposal(search, study)
    except InvalidInput as error:
        return Waits(str(error).removesuffix("."))


def run_id_of(study: str, trial: int, rung: int) -> str:
    """Return the id of the run of a rung: `lr-depth-t007-r1`."""
    return f"{study}-t{trial:03d}-r{rung}"


def _all_over(study: StudyState, waits: Waits | None) -> str:
    count, most = len(study.trials), study.declared.trials
    if count >= most:
        return f"All {count} trials are over."
    why = "it has no further config" if waits is None else waits.why
    none = f"the search proposes none of the other {most - count}"
    return f"All {count} trials are over, and {none}: {why}."


def _moved(study: StudyState, spent: Spent, move: Move) -> Answer:
    if isinstance(move, Stop):
        return TrialStopped(trial=move.trial, why=move.why, decided_by=BY)
    return _next_rung(study, move) if _has_slot(study) else _waits(study, spent)


def _next_rung(study: StudyState, move: GoOn) -> TrialProposed:
    rung = len(study.trials[move.trial].rungs)
    judged = study.trials[move.source].judged_at(rung - 1)
    assert judged is not None, "it was measured there"
    return TrialProposed(
        trial=move.trial,
        rung=rung,
        run_id=run_id_of(study.declared.study, move.trial, rung),
        config=move.config,
        steps=study.declared.budgets[rung],
        source=judged.checkpoint,
        why=f"{move.why[0].upper()}{move.why[1:]}.",
        decided_by=BY,
    )


def _repeat(study: StudyState) -> TrialProposed | None:
    """Return the next run of one of the best trials with another seed, once all trials are over."""
    asked, budgets = study.declared.repeat, study.declared.budgets
    if not asked or not all(map(is_over, study.trials)):
        return None
    whole = [each for each in study.trials if each.status is TrialStatus.DONE]
    whole.sort(key=lambda each: (study.loss_of(each.of_all_seeds[0]), each.number))
    for place, trial in enumerate(whole[: asked["best"]]):
        if len(trial.repeats) < asked["seeds"]:
            repeat = len(trial.repeats) + 1
            rung = len(budgets) - 1 + repeat
            return TrialProposed(
                trial=trial.number,
                rung=rung,
                run_id=run_id_of(study.declared.study, trial.number, rung),
                config=trial.config,
                steps=budgets[-1],
                repeat=repeat,
                why=f"Number {place + 1} of the best, trial {trial.number}, again with another seed.",
                decided_by=BY,
            )
    return None


def _why_it_ends(study: StudyState, spent: Spent) -> tuple[str, str] | None:
    """Return the cause and the words of a study's end before its time; None where it goes on."""
    declared = study.declared
    if study.stopped is not None:
        return USER, f"{study.stopped.by} stopped it: {study.stopped.why}"
    hours = spent.device_s / HOUR_S
    if declared.max_device_hours is not None and hours >= declared.max_device_hours:
        most = f"{declared.max_device_hours:g}"
        return DEVICE_HOURS, f"{hours:.3g} of at most {most} device-hours are spent."
    if declared.max_cost is not None and spent.cost >= declared.max_cost:
        most = cost_text(declared.max_cost)
        return MONEY, f"{cost_text(spent.cost)} of at most {most} is spent."
    judged = [t.rungs[0].judged for t in study.trials if t.rungs[0].judged is not None]
    if len(judged) >= FAILED_FIRST_MAX and all(each.outcome == FAILED for each in judged):
        return ALL_FAILED, f"The first {len(judged)} trials failed, the last so: {judged[-1].why}"
    return None


def _finished(study: StudyState, spent: Spent, cause: str, why: str) -> StudyFinished:
    best = study.best
    return StudyFinished(
        cause=cause,
        best=None if best is None else best.number,
        why=why,
        decided_by=BY,
        device_s=spent.device_s,
        cost=spent.cost,
    )


def _has_slot(study: StudyState) -> bool:
    return len(study.open_rungs) < study.declared.slots


def _waits(study: StudyState, spent: Spent) -> Waits:
    ids = [rung.proposed.run_id for rung in study.open_rungs]
    train = [run_id for run_id in ids if run_id not in spent.waiting]
    named, count = ", ".join(train[:3]), len(train)
    if not train:
        return Waits(f"none of {study.declared.slots} slots trains")
    return Waits(
        f"{count} of {study.declared.slots} slots train: {named}{' …' if count > 3 else ''}"
    )


def epochs_of(study: StudyState) -> int:
    """Return how many steps all runs of a study train together, each from its source on."""
    return sum(
        rung.proposed.steps - (rung.proposed.source.step if rung.proposed.source else 0)
        for trial in study.trials
        for rung in (*trial.rungs, *trial.repeats)
    )


def is_over(trial: Trial) -> bool:
    """Whether a trial gets no further steps, whatever comes."""
    return trial.status in (TrialStatus.STOPPED, TrialStatus.DONE, TrialStatus.FAILED)


def value_words(value: float | None, outcome: str) -> str:
    """Return a trial's value as people read it."""
    return f"{value:g}" if value is not None and math.isfinite(value) else outcome.replace("_", " ")
