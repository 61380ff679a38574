"""Facts of a study, and of its trials: a row for each run of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tracks_dagster.ledger.facts.fact import Absence, Fact, Type
from tracks_dagster.track.bodies import MEASURED, TrialJudged
from tracks_dagster.track.states.study_state import HOUR_S, Rung, StudyState, Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class RungView:
    """One run of a trial."""

    study: str
    trial: Trial
    rung: Rung


NO_BEST: Absence[StudyState] = Absence(
    "no_best", "no trial was measured yet", lambda s: s.best is None
)
NOT_REPEATED: Absence[StudyState] = Absence(
    "not_repeated",
    "it was not trained with other seeds, or one of them has no value",
    lambda s: s.best is not None and s.best.mean_and_deviation is None,
)
NO_HOURS_CAP: Absence[StudyState] = Absence(
    "no_cap", "it has no cap in device-hours", lambda s: s.declared.max_device_hours is None
)
NO_MONEY_CAP: Absence[StudyState] = Absence(
    "no_cap", "it has no cap in money", lambda s: s.declared.max_cost is None
)
ANY_HOUR: Absence[StudyState] = Absence(
    "any_hour", "runs may start at any hour", lambda s: not s.declared.off_peak
)
STUDY_OPEN: Absence[StudyState] = Absence(
    "open", "the study is not finished", lambda s: s.finished is None
)
FROM_STEP_0: Absence[RungView] = Absence(
    "from_step_0", "it started from nothing", lambda v: v.rung.proposed.source is None
)
NOT_A_REPEAT: Absence[RungView] = Absence(
    "not_a_repeat", "it is of the trial itself", lambda v: v.rung.proposed.repeat is None
)
RUNG_OPEN: Absence[RungView] = Absence(
    "open", "its run is not judged yet", lambda v: v.rung.judged is None
)
NOT_MEASURED: Absence[RungView] = Absence(
    "not_measured",
    "it was not a number, or it failed",
    lambda v: v.rung.judged is not None and v.rung.judged.value is None,
)
NO_PRICE: Absence[RungView] = Absence(
    "no_price",
    "there was no price table",
    lambda v: v.rung.judged is not None and v.rung.judged.cost is None,
)


def rung_views(state: StudyState) -> list[RungView]:
    """Return the view of every run of a study's trials."""
    name = state.declared.study
    return [
        RungView(study=name, trial=trial, rung=rung)
        for trial in state.trials
        for rung in (*trial.rungs, *trial.repeats)
    ]


def _best(read: Callable[[TrialJudged], Any]) -> Callable[[StudyState], Any]:
    def of(state: StudyState) -> Any:
        best = state.best
        judged = [] if best is None else [r.judged for r in best.rungs if r.judged is not None]
        measured = [each for each in judged if each.outcome == MEASURED]
        return read(measured[-1]) if measured else None

    return of


def _best_spread(place: int) -> Callable[[StudyState], Any]:
    def of(state: StudyState) -> Any:
        spread = None if state.best is None else state.best.mean_and_deviation
        return None if spread is None else spread[place]

    return of


def _judged(read: Callable[[TrialJudged], Any]) -> Callable[[RungView], Any]:
    return lambda view: None if view.rung.judged is None else read(view.rung.judged)


def _source(view: RungView) -> Any:
    source = view.rung.proposed.source
    return None if source is None else source.run_id


TEXT, INTEGER, REAL, TIME = Type.TEXT, Type.INTEGER, Type.REAL, Type.TIME

# Tables, to be read by the line:
# fmt: off
STUDY: tuple[Fact[StudyState], ...] = (
    Fact("study", TEXT, lambda s: s.declared.study, "its name", is_key=True, since=10, ui="study"),
    Fact("model_family", TEXT, lambda s: s.declared.run.model_family, "the project of its trials",
         since=10, ui="project"),
    Fact("state", TEXT, lambda s: "open" if s.finished is None else "finished",
         "open or finished", since=10, ui="state"),
    Fact("metric", TEXT, lambda s: s.declared.metric, "what it improves", since=10, ui="metric"),
    Fact("direction", TEXT, lambda s: s.declared.direction, "min or max", since=10, ui="direction"),
    Fact("space", Type.MAPPING, lambda s: s.declared.space, "config key → how it is drawn", since=10),
    Fact("search", Type.MAPPING, lambda s: s.declared.search, "how configs are chosen", since=10),
    Fact("scheduler", Type.MAPPING, lambda s: s.declared.scheduler, "who gets more steps", since=10),
    Fact("max_trials", INTEGER, lambda s: s.declared.trials, "how many configs it may try",
         since=10, ui="max_trials"),
    Fact("trial_count", INTEGER, lambda s: len(s.trials), "how many it has tried",
         since=10, ui="trial_count"),
    Fact("slots", INTEGER, lambda s: s.declared.slots, "how many may train at once", since=10),
    Fact("max_device_hours", REAL, lambda s: s.declared.max_device_hours, "the cap in force",
         absent=(NO_HOURS_CAP,), since=10),
    Fact("max_cost", REAL, lambda s: s.declared.max_cost, "the cap in force, in the table's currency",
         absent=(NO_MONEY_CAP,), since=10),
    Fact("off_peak", TEXT, lambda s: s.declared.off_peak or None,
         "the hours in which runs may start", absent=(ANY_HOUR,), since=10),
    Fact("device_hours", REAL, lambda s: s.device_s / HOUR_S,
         "of the runs that are judged, of all at its end", since=10, ui="device_hours"),
    Fact("best_trial", INTEGER, lambda s: None if s.best is None else s.best.number,
         "of those that came furthest", absent=(NO_BEST,), since=10, ui="best_trial"),
    Fact("best_value", REAL, _best(lambda j: j.value), "its metric", absent=(NO_BEST,),
         since=10, ui="best_value"),
    Fact("best_mean", REAL, _best_spread(0),
         "the mean over its seeds", absent=(NO_BEST, NOT_REPEATED), since=10, ui="best_mean"),
    Fact("best_deviation", REAL, _best_spread(1),
         "the standard deviation over its seeds", absent=(NO_BEST, NOT_REPEATED),
         since=10, ui="best_deviation"),
    Fact("best_run_id", TEXT, _best(lambda j: j.run_id), "the run that it was measured on",
         absent=(NO_BEST,), since=10, ui="best_run_id"),
    Fact("declared_at", TIME, lambda s: s.declared_at, "recorded", since=10, ui="declared_at"),
    Fact("finished_at", TIME, lambda s: s.finished_at, "recorded", absent=(STUDY_OPEN,),
         since=10, ui="finished_at"),
    Fact("cause", TEXT, lambda s: None if s.finished is None else s.finished.cause,
         "complete, device_hours, money, all_failed or user", absent=(STUDY_OPEN,),
         since=10, ui="cause"),
)

TRIAL: tuple[Fact[RungView], ...] = (
    Fact("study", TEXT, lambda v: v.study, "the study", is_key=True, since=10),
    Fact("trial", INTEGER, lambda v: v.trial.number, "0-based", is_key=True, since=10),
    Fact("rung", INTEGER, lambda v: v.rung.proposed.rung,
         "0-based: which of its budgets; a repeat's is counted on", is_key=True, since=10),
    Fact("repeat", INTEGER, lambda v: v.rung.proposed.repeat,
         "1 for the first time that it was trained again with another seed", absent=(NOT_A_REPEAT,),
         since=10),
    Fact("run_id", TEXT, lambda v: v.rung.proposed.run_id, "the training run", since=10),
    Fact("config", Type.MAPPING, lambda v: v.rung.proposed.config, "what was chosen for it", since=10),
    Fact("steps", INTEGER, lambda v: v.rung.proposed.steps, "of the whole trial at its end", since=10),
    Fact("source_run_id", TEXT, _source, "whose checkpoint it goes on from", absent=(FROM_STEP_0,),
         since=10),
    Fact("state", TEXT, lambda v: v.trial.status.value, "of the trial: open, paused, stopped, done or "
         "failed", since=10),
    Fact("outcome", TEXT, _judged(lambda j: j.outcome), "measured, not_a_number or failed",
         absent=(RUNG_OPEN,), since=10),
    Fact("value", REAL, _judged(lambda j: j.value), "of the study's metric",
         absent=(RUNG_OPEN, NOT_MEASURED), since=10),
    Fact("device_s", REAL, _judged(lambda j: j.device_s), "of all its attempts", absent=(RUNG_OPEN,),
         since=10),
    Fact("cost", REAL, _judged(lambda j: j.cost), "in the price table's currency",
         absent=(RUNG_OPEN, NO_PRICE), since=10),
    Fact("why", TEXT, lambda v: v.rung.proposed.why, "why it was given these steps", since=10),
    Fact("proposed_at", TIME, lambda v: v.rung.at, "recorded", since=10),
    Fact("judged_at", TIME, lambda v: v.rung.judged_at, "recorded", absent=(RUNG_OPEN,), since=10),
)
# fmt: on
