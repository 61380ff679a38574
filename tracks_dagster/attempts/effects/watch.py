"""What sensors do beside deciding: survey open attempts, close lost ones, take old partitions away.

Every step can be repeated, and done by two sensors at once; one run's trouble does not keep the others
waiting. Which attempts need a Dagster run is planned by `attempts.launch`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from tracks_dagster.attempts.effects.closing import close_attempt
from tracks_dagster.attempts.effects.evidence import (
    NO_PROBLEM,
    STOPPED_BEFORE_START,
    EndProblem,
)
from tracks_dagster.attempts.effects.gang_watch import LeftGangs
from tracks_dagster.attempts.effects.world import World
from tracks_dagster.attempts.launch import (
    OpenAttempt,
    cancelled_alone,
    is_left_to_drain,
    is_left_to_sensor,
    is_lost,
    is_supervised,
    needs_supervisor,
    stopped_before_start,
)
from tracks_dagster.attempts.ports import Orchestrator, OrchestratorRun
from tracks_dagster.holds.effects.stops import request_stop
from tracks_dagster.ledger.effects.ticks import SEVERAL_AT_ONCE, Tick, TimeSlice, take_turns
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.retry.effects.due import runs_with_open_attempts
from tracks_dagster.track import names
from tracks_dagster.track.errors import TracksError
from tracks_dagster.track.names import AttemptRef, run_track
from tracks_dagster.track.states.run_state import AttemptState
from tracks_dagster.track.unforeseen import problem_of

CANCELLED_BY = "dagster ui"
CLOSE_S_MAX = 20.0  # of a tick: to look and to close
# Of one asset. Dagster's own advice is to stay below 100 000; its lists are read whole.
PARTITIONS_MAX = 20_000
FRESH = timedelta(days=1)  # a run that finished so recently stays, however many there are
PRUNE_EVERY = timedelta(hours=1)
LEAVE_MAX = 200  # in one tick, of all assets: Dagster deletes them one by one, 10 to 40 a second
RUNS_A_QUERY = 500


def survey(world: World, time_slice: TimeSlice = SEVERAL_AT_ONCE) -> Tick[OpenAttempt]:
    """Look at every open attempt: its track, its gang and its Dagster runs.

    What ranks appended since reaches the ledger here.
    """

    def look(run_id: str) -> Tick[OpenAttempt]:
        found = _look(world, run_id)
        return Tick(done=() if found is None else (found,))

    return take_turns(runs_with_open_attempts(world.ledger), look, time_slice)


def obey_cancels(world: World, attempts: Sequence[OpenAttempt]) -> Tick[OpenAttempt]:
    """Record a stop for each attempt whose only Dagster run a person cancelled; once for an attempt.

    Such a run was queued, or its worker died before it could record what it was asked for. done: the
    attempts given, as they are then; whether one with a problem may start nobody can tell.
    """
    found, problems = [], []
    for each in attempts:
        try:
            found.append(_obeyed(world, each))
        except Exception as error:  # noqa: BLE001 - of that attempt alone
            problems.append(f"{each.key}: {problem_of(error)}")
    return Tick(done=tuple(found), problems=tuple(problems))


def _obeyed(world: World, each: OpenAttempt) -> OpenAttempt:
    dagster_run_id = cancelled_alone(each)
    if dagster_run_id is None or not world.orchestrator.was_cancelled(dagster_run_id):
        return each
    stop_by_cancel(world.tracks, each.run_id, dagster_run_id)
    return replace(each, is_stopped=True)


def stop_by_cancel(tracks: Tracks, run_id: str, dagster_run_id: str) -> None:
    """Record that a person cancelled the Dagster run that supervises, or was to."""
    why = f"its Dagster run {dagster_run_id} was cancelled"
    request_stop(tracks, run_id, mode="drain", by=CANCELLED_BY, why=why)


def close_lost(
    world: World, time_slice: TimeSlice = SEVERAL_AT_ONCE, left: LeftGangs | None = None
) -> Tick[tuple[str, AttemptState]]:
    """Close every attempt whose gang is gone and that no Dagster run supervises, and what is due for a
    gang that a Dagster run left to us.

    A gang that lives and is to end is drained: its supervisor may be gone for good.
    left: what was seen of such gangs before. done: the run, and the attempt as it ended.
    """
    left = LeftGangs() if left is None else left

    def look(run_id: str) -> Tick[tuple[str, AttemptState]]:
        found = _look(world, run_id)
        if found is None:
            return Tick()
        try:
            problem = _problem(world, found, left)
            if problem is None:
                return Tick()
            if not left.has_ended(world, found, problem):
                return Tick()
            gangs = world.launcher_of(found.attempt.opened.compute.launcher)
            ended = close_attempt(world, gangs, found.ref, by=names.WATCH_ATTEMPTS, problem=problem)
            left.forget(found.key)
            return Tick(done=((run_id, ended),))
        except TracksError as error:
            return Tick(problems=(f"{found.key}: {error}",))

    run_ids = runs_with_open_attempts(world.ledger)
    left.forget_all_but(run_ids)
    return take_turns(run_ids, look, time_slice)


def _problem(world: World, found: OpenAttempt, left: LeftGangs) -> EndProblem | None:
    """Return with what the attempt is to be closed; None where that is not due, or not ours to do."""
    if found.key in left.ending and not is_supervised(found):
        return left.ending[found.key]
    if is_left_to_sensor(found):
        return left.look(world, found)
    left.forget(found.key)
    if is_left_to_drain(found):
        name = found.attempt.opened.compute.launcher
        world.launcher_of(name).drain(found.ref, grace_s=world.drain_grace_s(name))
    if not is_lost(found, world.tracks.now()):
        return None
    return STOPPED_BEFORE_START if stopped_before_start(found) else NO_PROBLEM


def _look(world: World, run_id: str) -> OpenAttempt | None:
    """Return the run's open attempt as it is now; None where it has none any more."""
    world.tracks.project(run_track(run_id))
    state, orchestrator = world.tracks.run(run_id), world.orchestrator
    attempt = state.open_attempt
    if attempt is None:
        return None
    gangs = world.launcher_of(attempt.opened.compute.launcher)
    ref = AttemptRef(run_id, attempt.attempt_id)
    found = OpenAttempt(
        run_id=run_id,
        attempt=attempt,
        runs=_runs(orchestrator, ref, attempt),
        gang=gangs.glance(ref),
        workload_class=state.declared.workload_class,
        is_stopped=state.stop_for(attempt) is not None,
    )
    if not needs_supervisor(found):
        return found
    claims = [claim.body.dagster_run_id for each in state.attempts for claim in each.claims]
    return replace(
        found, parent=_known(reversed(claims), orchestrator), root=_known(claims, orchestrator)
    )


def _runs(
    orchestrator: Orchestrator, ref: AttemptRef, attempt: AttemptState
) -> Sequence[OrchestratorRun]:
    """Return the Dagster runs of the attempt, whatever that of its newest claim is called."""
    runs = orchestrator.runs_of_attempt(ref.key)
    claim = attempt.claims[-1].body.dagster_run_id if attempt.claims else None
    if claim is None or any(run.dagster_run_id == claim for run in runs):
        return runs
    claimed = orchestrator.find(claim)
    return runs if claimed is None else [*runs, claimed]


def _known(claims: Iterable[str], orchestrator: Orchestrator) -> str | None:
    """Return the first that Dagster still has: it shows no group of a run that was deleted."""
    return next((each for each in claims if orchestrator.find(each) is not None), None)


def leaving(
    keys: Sequence[str],
    finished_at: Mapping[str, datetime],
    now: datetime,
    *,
    keep_days: float,
    keys_max: int = PARTITIONS_MAX,
) -> list[str]:
    """Return which partitions of one asset leave Dagster's UI, the oldest finish first.

    Those of finished runs that are old, or too many for Dagster's pages to stay fast. Records, ledger
    and store keep everything; `tracks explain`, `report` and `sql` show it as before.

    keys: `RUN/…`; finished_at: of the runs that are; one that is not there has not finished.
    """
    finished = sorted(
        (finished_at[run], key) for key in keys if (run := run_of(key)) in finished_at
    )
    surplus = len(keys) - keys_max
    return [
        key
        for index, (at, key) in enumerate(finished)
        if now - at > timedelta(days=keep_days) or (index < surplus and now - at > FRESH)
    ]


def run_of(key: str) -> str:
    """Return the run that a partition of ours belongs to."""
    return key.partition("/")[0]


def finished_runs(ledger: Ledger, run_ids: Sequence[str]) -> dict[str, datetime]:
    """Return when each of these runs finished; those that have not are left out."""
    found: dict[str, datetime] = {}
    for begin in range(0, len(run_ids), RUNS_A_QUERY):
        given = {f"run_{i}": each for i, each in enumerate(run_ids[begin : begin + RUNS_A_QUERY])}
        rows = ledger.query(
            "select run_id, finished_at from training_runs where finished_at is not null "
            f"and run_id in ({', '.join(f':{name}' for name in given)})",
            given,
        )
        found |= {row["run_id"]: row["finished_at"] for row in rows}
    return found
