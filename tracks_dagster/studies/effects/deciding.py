"""The decider of studies: judges what has ended, proposes what follows, declares what was proposed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from tracks_dagster.attempts.effects.manual_retry import ManualRetry, retry_by_person
from tracks_dagster.attempts.effects.world import World
from tracks_dagster.evals.effects.running import waive
from tracks_dagster.holds.effects.stops import Mode, request_stop
from tracks_dagster.ledger.deciding import Answer, Append, First, Wait
from tracks_dagster.retry.caps import cost_of
from tracks_dagster.studies.deciding import Answer as Decision
from tracks_dagster.studies.deciding import Drain, Spent, decide
from tracks_dagster.studies.effects.searching import search_of
from tracks_dagster.studies.effects.trials import prepared_of
from tracks_dagster.studies.judging import device_s_of, judge, lost_evals, refused
from tracks_dagster.studies.search import Waits
from tracks_dagster.studies.words import off_peak_words, opens
from tracks_dagster.track import names
from tracks_dagster.track.bodies import (
    StudyFinished,
    TrialJudged,
    TrialProposed,
    TrialStopped,
)
from tracks_dagster.track.errors import InvalidInput, ObjectLost, TrackError
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Kind
from tracks_dagster.track.states.lifecycle import (
    TRIAL_WAITS,
    RunLifecycle,
    is_drained_by_study,
    run_status,
    trial_for_a_person,
)
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.states.study_state import Rung, StudyState

_KINDS = {
    TrialProposed: (Kind.TRIAL_PROPOSED, "proposed"),
    TrialJudged: (Kind.TRIAL_JUDGED, "judged"),
    TrialStopped: (Kind.TRIAL_STOPPED, "stopped"),
    StudyFinished: (Kind.STUDY_FINISHED, "finished"),
}
RUNS_NAMED_MAX = 3  # of those that a study at its end waits for
_DUE = "select study from studies where state = 'open' order by declared_at, study"


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneStudies:
    """Decides on the studies that are open; its driver is given `OF_STUDIES`."""

    name: str = names.TUNE_STUDIES

    def due(self, world: World) -> Iterable[str]:
        """Return the open studies, oldest first; raises LedgerError."""
        return [row["study"] for row in world.ledger.query(_DUE)]

    def decide(self, state: StudyState, world: World) -> Answer:
        """Return the next record of the study, or the work that comes before it."""
        return self._decide({}, state, world)

    def _decide(self, unresumed: dict[str, str], state: StudyState, world: World) -> Answer:
        """unresumed: run id → why it cannot be resumed, of those that were tried in this look."""
        if state.finished is not None:
            return None
        now, metric = world.tracks.now(), state.declared.metric
        runs = [(rung, world.tracks.find_run(rung.proposed.run_id)) for rung in state.open_rungs]
        for rung, run in runs:
            if run is None:
                continue
            if run.declared.experiment != state.declared.study:
                why = f"There is a run {run.run_id} already, which is not of this study."
                return self._append(world, refused(rung, why))
            lost = [*lost_evals(run, world.policy.rule(TerminationReason.EVALUATOR_ERROR).count)]
            if lost:
                return First(do=partial(_let_go, world, run.run_id, lost))
            judged = judge(metric, rung, run, prices=world.prices, now=now)
            if judged is not None:
                return self._append(world, judged)
        there = [run for _, run in runs if run is not None]
        opens_at = opens(state, now)
        closed = None if opens_at is None else Waits(off_peak_words(state, now))
        paused = [r.run_id for r in there if _was_drained_here(r) and r.run_id not in unresumed]
        persons = unresumed | {
            run.run_id: words for run in there if (words := trial_for_a_person(run)) is not None
        }
        spent = _spent(state, there, world, persons)
        answer: Decision
        try:
            answer = decide(state, spent, partial(search_of, state.declared), closed=closed)
        except InvalidInput as error:  # no search of it can be made here
            answer = Waits(str(error).removesuffix("."))
        if isinstance(answer, Drain):
            return _drained(world, there, answer.why)
        if isinstance(answer, StudyFinished):
            return self._append(world, answer)
        missing = [rung for rung, run in runs if run is None]
        if missing and closed is None:
            return First(do=partial(self._declare, world, state, missing))
        if paused and closed is None:
            return First(do=partial(self._resume, unresumed, world, paused))
        if isinstance(answer, Waits):
            waits = closed if closed is not None and (missing or paused) else answer
            why = "; ".join([waits.why, *persons.values()])
            return Wait(why=why, until=opens_at)
        return None if answer is None else self._append(world, answer)

    def _append(
        self, world: World, body: TrialProposed | TrialJudged | TrialStopped | StudyFinished
    ) -> Append:
        kind, what = _KINDS[type(body)]
        is_last = isinstance(body, StudyFinished)
        draft = world.tracks.draft(kind, body)
        return Append(draft=draft, what=what, why=body.why, is_last=is_last)

    def _declare(
        self, world: World, state: StudyState, missing: Sequence[Rung]
    ) -> Callable[[StudyState, World], Answer] | None:
        """Declare the runs that were proposed; return the question that fails what is refused."""
        problems: dict[str, str] = {}
        for rung in missing:
            try:
                request = prepared_of(world.tracks, state, rung.proposed, world.policy)
                assert world.declare is not None, "a study needs a home that declares runs"
                world.declare(request)
            except (InvalidInput, ObjectLost) as error:
                problems[rung.proposed.run_id] = str(error)
        return partial(self._after_refusals, problems) if problems else None

    def _after_refusals(self, problems: dict[str, str], state: StudyState, world: World) -> Answer:
        for rung in state.open_rungs:
            why = problems.pop(rung.proposed.run_id, None)
            if why is not None:
                return self._append(world, refused(rung, why))
        return self.decide(state, world)

    def _resume(
        self, unresumed: dict[str, str], world: World, run_ids: Sequence[str]
    ) -> Callable[[StudyState, World], Answer] | None:
        """Open the next attempt of each; one that a person has resumed meanwhile trains already. One
        that cannot be resumed keeps no other waiting."""
        retry = ManualRetry(name=names.TUNE_STUDIES, why="Its study goes on.")
        found = dict(unresumed)
        for run_id in run_ids:
            try:
                retry_by_person(world, run_id, retry)
            except (InvalidInput, ObjectLost, TrackError) as error:
                if run_status(world.tracks.run(run_id)).state == RunLifecycle.WAITING:
                    found[run_id] = f"{run_id} {TRIAL_WAITS}it cannot be resumed: {error}"
        return partial(self._decide, found) if len(found) > len(unresumed) else None


def _let_go(world: World, run_id: str, lost: Sequence[tuple[str, str]]) -> None:
    """Waive evals of a trial, so that its run is finished and the trial judged."""
    for suite, why in lost:
        waive(world.tracks, run_id, suite, by=names.TUNE_STUDIES, why=why)


def _spent(
    state: StudyState, runs: Sequence[RunState], world: World, persons: Collection[str]
) -> Spent:
    """Return what the study has used so far, its open runs up to now."""
    now, prices = world.tracks.now(), world.prices
    costs = () if prices is None else (cost_of(run, prices, now).amount for run in runs)
    return Spent(
        device_s=state.device_s + sum(device_s_of(run, now) for run in runs),
        cost=state.cost + sum(costs),
        running=[r.run_id for r in runs if run_status(r).state == RunLifecycle.RUNNING],
        waiting=persons,
    )


def _drained(world: World, runs: Sequence[RunState], why: str) -> Answer:
    """Ask the open attempts to save and end, once, and end the runs that have none yet; wait for those
    that were asked."""
    asked = [run for run in runs if (a := run.open_attempt) is not None and run.stop_for(a) is None]
    never = [run for run in runs if not run.attempts and not run.stops and run.finished is None]

    def ask() -> None:
        by = names.TUNE_STUDIES
        for run in (*asked, *never):
            with suppress(InvalidInput):  # it ended meanwhile
                mode: Mode = "drain" if run.attempts else "stop"
                request_stop(world.tracks, run.run_id, mode=mode, by=by, why=why)

    if asked or never:
        return First(do=ask)
    running = [run for run in runs if run_status(run).state == RunLifecycle.RUNNING]
    states = "; ".join(f"{r.run_id}: {run_status(r).why}" for r in running[:RUNS_NAMED_MAX])
    return Wait(why=f"Its open runs save and wait. {why} {states}")


def _was_drained_here(run: RunState) -> bool:
    """Whether a run waits because its study had come to an end, and goes on with the study."""
    return run_status(run).state == RunLifecycle.WAITING and is_drained_by_study(run)
