"""A study and its trials: a pure fold over the study's track.

A trial is a row of rungs, each a training run that goes on from a checkpoint of the one before, or of
a better trial. What to do next is decided in `studies`; here is what was decided.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from statistics import fmean, stdev

from tracks_dagster.track.bodies import (
    MEASURED,
    StudyDeclared,
    StudyExtended,
    StudyFinished,
    StudyStopped,
    TrialJudged,
    TrialProposed,
    TrialStopped,
)
from tracks_dagster.track.body_json import body_of
from tracks_dagster.track.errors import InvalidDecision, TrackBroken
from tracks_dagster.track.records import Draft, Json, Kind, Record, parse, seal

HOUR_S = 3600.0
_SOME_TIME = datetime(2000, 1, 1, tzinfo=UTC)  # of a record that is only tried


class TrialStatus(StrEnum):
    """What a trial does now."""

    OPEN = "open"  # a run of it is declared, or about to be
    PAUSED = "paused"  # judged, and its scheduler has not decided yet
    STOPPED = "stopped"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One run of a trial. judged: None while it is open."""

    seq: int
    at: datetime
    proposed: TrialProposed
    judged: TrialJudged | None = None
    judged_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A trial with its runs, oldest first. stopped: None while its scheduler has not ended it. repeats:
    runs of the whole trial with other seeds."""

    rungs: tuple[Rung, ...]
    budget_count: int
    stopped: TrialStopped | None = None
    repeats: tuple[Rung, ...] = ()

    @property
    def number(self) -> int:
        """Its place in the study, 0-based."""
        return self.rungs[0].proposed.trial

    @property
    def last(self) -> Rung:
        """Its newest run."""
        return self.rungs[-1]

    @property
    def config(self) -> Mapping[str, Json]:
        """What was chosen for it, by its newest run."""
        return self.last.proposed.config

    @property
    def status(self) -> TrialStatus:
        """What it does now."""
        judged = self.last.judged
        if judged is None:
            return TrialStatus.OPEN
        if judged.outcome != MEASURED:
            return TrialStatus.FAILED
        if self.stopped is not None:
            return TrialStatus.STOPPED
        is_whole = len(self.rungs) == self.budget_count
        return TrialStatus.DONE if is_whole else TrialStatus.PAUSED

    @property
    def of_all_seeds(self) -> tuple[TrialJudged, ...]:
        """What its newest run came to, and its repeats, as far as they are judged."""
        return tuple(r.judged for r in (self.last, *self.repeats) if r.judged is not None)

    @property
    def mean_and_deviation(self) -> tuple[float, float] | None:
        """Over its seeds; None where it was not repeated, or a seed has no value."""
        values = [each.value for each in self.of_all_seeds if each.value is not None]
        if not self.repeats or len(values) <= len(self.repeats):
            return None
        return fmean(values), stdev(values)

    def judged_at(self, rung: int) -> TrialJudged | None:
        """Return what its run of that rung came to; None where it has not come so far."""
        return self.rungs[rung].judged if rung < len(self.rungs) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyState:
    """A study. trials: by number; caps in force are in `declared`. `head` is the last record folded.

    finished: None while it is open; its open trials then wait for more of what it may use.
    """

    head: Record
    declared: StudyDeclared
    declared_at: datetime
    trials: tuple[Trial, ...] = ()
    stopped: StudyStopped | None = None
    finished: StudyFinished | None = None
    finished_at: datetime | None = None

    @property
    def open_rungs(self) -> tuple[Rung, ...]:
        """The runs that are not judged yet, by their trial."""
        return tuple(
            rung
            for each in self.trials
            for rung in (each.last, *each.repeats)
            if rung.judged is None
        )

    @property
    def device_s(self) -> float:
        """Device seconds of the runs that are judged; of all by its end where it is finished."""
        if self.finished is not None and self.finished.device_s is not None:
            return self.finished.device_s
        return sum(each.device_s for each in self._judged())

    @property
    def cost(self) -> float:
        """What the runs that are judged cost, as far as there were prices; all by its end where it
        is finished."""
        if self.finished is not None and self.finished.cost is not None:
            return self.finished.cost
        return sum(each.cost or 0.0 for each in self._judged())

    def loss_of(self, judged: TrialJudged) -> float:
        """Return a value as one of which less is better; infinite where there is none."""
        if judged.value is None:
            return math.inf
        return judged.value if self.declared.direction == "min" else -judged.value

    def trial_of(self, run_id: str) -> Trial | None:
        """Return the trial that a run is of, a repeat too; None where it is of none."""
        return next(
            (t for t in self.trials for r in (*t.rungs, *t.repeats) if r.proposed.run_id == run_id),
            None,
        )

    def mean_loss_of(self, trial: Trial) -> float:
        """Return the mean over a trial's seeds; infinite where one of them has no value."""
        losses = [self.loss_of(each) for each in trial.of_all_seeds]
        return math.inf if math.inf in losses else fmean(losses)

    @property
    def best(self) -> Trial | None:
        """The trial with the best value among those that have come furthest; the first of equals. Once
        trials were repeated, the one of these with the best mean over its seeds, and of those that
        have none the one with the best first seed."""
        repeated = [each for each in self.trials if each.repeats]
        if repeated and all(r.judged is not None for each in repeated for r in each.repeats):
            return min(repeated, key=self._over_seeds)
        measured = [
            (-len(judged), self.loss_of(judged[-1]), each.number)
            for each in self.trials
            if (
                judged := [
                    r.judged for r in each.rungs if r.judged and r.judged.outcome == MEASURED
                ]
            )
        ]
        return self.trials[min(measured)[2]] if measured else None

    def _over_seeds(self, trial: Trial) -> tuple[float, float, int]:
        return self.mean_loss_of(trial), self.loss_of(trial.of_all_seeds[0]), trial.number

    def _judged(self) -> Iterable[TrialJudged]:
        rungs = (rung for each in self.trials for rung in (*each.rungs, *each.repeats))
        return (each.judged for each in rungs if each.judged is not None)


def fold(records: Iterable[Record], state: StudyState | None = None) -> StudyState | None:
    """Return the state after `records`, starting from `state`; None for an empty track."""
    trials = [] if state is None else list(state.trials)
    for record in records:
        state = _applied(state, record, trials)
    return None if state is None else replace(state, trials=tuple(trials))


def apply(state: StudyState | None, record: Record) -> StudyState:
    """Return the state after one more record; raises TrackBroken for one that cannot come next."""
    trials = [] if state is None else list(state.trials)
    return replace(_applied(state, record, trials), trials=tuple(trials))


def _applied(state: StudyState | None, record: Record, trials: list[Trial]) -> StudyState:
    """Return the state but for its trials, which are brought up to date in `trials`: ten thousand of
    them are not copied for each record."""
    if state is None:
        if record.kind is not Kind.STUDY_DECLARED:
            raise _misplaced(record, "a study begins with study_declared")
        declared = body_of(StudyDeclared, record)
        return StudyState(head=record, declared=declared, declared_at=record.at)
    after = replace(state, head=record)
    match record.kind:
        case Kind.NOTE | Kind.ALERT:
            pass
        case Kind.STUDY_EXTENDED:
            after = _extended(after, body_of(StudyExtended, record))
        case Kind.TRIAL_PROPOSED:
            _propose(after, record, trials)
        case Kind.TRIAL_JUDGED:
            _judge(record, trials)
        case Kind.TRIAL_STOPPED:
            stopped = body_of(TrialStopped, record)
            trial = _trial(record, trials, stopped.trial)
            if trial.status is not TrialStatus.PAUSED:
                raise _misplaced(record, f"trial {trial.number} is {trial.status}")
            trials[trial.number] = replace(trial, stopped=stopped)
        case Kind.STUDY_STOPPED if state.finished is None:
            after = replace(after, stopped=body_of(StudyStopped, record))
        case Kind.STUDY_FINISHED if state.finished is None:
            finished = body_of(StudyFinished, record)
            after = replace(after, finished=finished, finished_at=record.at)
        case _:
            raise _misplaced(record, "the study is finished, or that is of another track")
    return after


def check(state: StudyState | None, draft: Draft) -> Draft:
    """Return `draft` if it may be the next record; raises InvalidDecision where the fold refuses it."""
    seq, at, before = 0, _SOME_TIME, None
    if state is not None:
        seq, at, before = state.head.seq + 1, state.head.at, state.head.sha256
    try:
        apply(state, parse(seal(draft, seq=seq, at=at, prev_sha256=before), seq=seq))
    except TrackBroken as error:
        raise InvalidDecision(f"Cannot append {draft.kind}: {error}") from error
    return draft


def _extended(state: StudyState, body: StudyExtended) -> StudyState:
    given = {
        name: value
        for name in ("trials", "slots", "max_device_hours", "max_cost", "off_peak")
        if (value := getattr(body, name)) is not None
    }
    declared = replace(state.declared, **given)
    return replace(state, declared=declared, stopped=None, finished=None, finished_at=None)


def _propose(state: StudyState, record: Record, trials: list[Trial]) -> None:
    body = body_of(TrialProposed, record)
    rung = Rung(seq=record.seq, at=record.at, proposed=body)
    if state.finished is not None:
        raise _misplaced(record, "the study is finished")
    if body.trial == len(trials) and body.rung == 0:
        trials.append(Trial(rungs=(rung,), budget_count=len(state.declared.budgets)))
        return
    trial = _trial(record, trials, body.trial)
    if body.repeat is not None:
        if trial.status is not TrialStatus.DONE or body.repeat != len(trial.repeats) + 1:
            raise _misplaced(record, f"trial {trial.number} is {trial.status}")
        trials[trial.number] = replace(trial, repeats=(*trial.repeats, rung))
        return
    if trial.status is not TrialStatus.PAUSED or body.rung != len(trial.rungs):
        raise _misplaced(record, f"trial {trial.number} is {trial.status}")
    trials[trial.number] = replace(trial, rungs=(*trial.rungs, rung))


def _judge(record: Record, trials: list[Trial]) -> None:
    body = body_of(TrialJudged, record)
    trial = _trial(record, trials, body.trial)

    def judged(rung: Rung) -> Rung:
        is_it = rung.proposed.rung == body.rung
        return replace(rung, judged=body, judged_at=record.at) if is_it else rung

    waiting = [r.proposed.rung for r in (trial.last, *trial.repeats) if r.judged is None]
    if body.rung not in waiting:
        raise _misplaced(record, f"trial {trial.number} is {trial.status}")
    rungs, repeats = tuple(map(judged, trial.rungs)), tuple(map(judged, trial.repeats))
    trials[trial.number] = replace(trial, rungs=rungs, repeats=repeats)


def _trial(record: Record, trials: list[Trial], number: int) -> Trial:
    if not 0 <= number < len(trials):
        raise _misplaced(record, f"there is no trial {number}")
    return trials[number]


def _misplaced(record: Record, why: str) -> TrackBroken:
    return TrackBroken(f"Record {record.seq} ({record.kind}) cannot come there: {why}.")
