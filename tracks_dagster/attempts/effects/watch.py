"""What sensors do beside deciding: look at every open attempt, and close those that nobody will.

Every step can be repeated, and done by two sensors at once; one run's trouble does not keep the others
waiting. Which attempts need a Dagster run is planned by `attempts.effects.launch`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tracks_dagster.attempts.effects.closing import close_attempt
from tracks_dagster.attempts.effects.launch import OpenAttempt, is_lost, needs_supervisor
from tracks_dagster.attempts.effects.world import World
from tracks_dagster.attempts.ports import Orchestrator
from tracks_dagster.ledger.effects.ticks import ONE_BY_ONE, Tick, TimeSlice, take_turns
from tracks_dagster.retry.effects.due import runs_with_open_attempts
from tracks_dagster.track import names
from tracks_dagster.track.errors import TracksError
from tracks_dagster.track.names import attempt_key
from tracks_dagster.track.states.run_state import AttemptState
from tracks_dagster.track.track import run_track

CLOSE_S_MAX = 20.0  # of a tick: to look and to close


def survey(world: World, time_slice: TimeSlice = ONE_BY_ONE) -> Tick[OpenAttempt]:
    """Look at every open attempt: what its track, its gang and Dagster say of it now.

    What ranks appended since reaches the ledger here.
    """

    def look(run_id: str) -> Tick[OpenAttempt]:
        found = _look(world, run_id)
        return Tick(done=() if found is None else (found,))

    return take_turns(runs_with_open_attempts(world.ledger), look, time_slice)


def close_lost(world: World, time_slice: TimeSlice = ONE_BY_ONE) -> Tick[tuple[str, AttemptState]]:
    """Close every attempt whose gang is gone and that no Dagster run supervises. done: the run, and the
    attempt as it ended."""

    def look(run_id: str) -> Tick[tuple[str, AttemptState]]:
        found = _look(world, run_id)
        if found is None or not is_lost(found):
            return Tick()
        try:
            return Tick(done=((run_id, _close(world, found)),))
        except TracksError as error:
            return Tick(problems=(f"{found.key}: {error}",))

    return take_turns(runs_with_open_attempts(world.ledger), look, time_slice)


def _close(world: World, lost: OpenAttempt) -> AttemptState:
    gangs = world.launcher_of(lost.attempt.opened.compute.launcher)
    return close_attempt(world, gangs, lost.ref, by=names.WATCH_ATTEMPTS)


def _look(world: World, run_id: str) -> OpenAttempt | None:
    """Return the run's open attempt as it is now; None where it has none any more."""
    world.tracks.project(run_track(run_id))
    state, orchestrator = world.tracks.run(run_id), world.orchestrator
    attempt = state.open_attempt
    if attempt is None:
        return None
    gangs = world.launcher_of(attempt.opened.compute.launcher)
    found = OpenAttempt(
        run_id=run_id,
        attempt=attempt,
        runs=orchestrator.runs_of_attempt(attempt_key(run_id, attempt.attempt_id)),
        gang=gangs.glance(run_id, attempt.attempt_id),
    )
    if not needs_supervisor(found):
        return found
    claims = [claim.body.dagster_run_id for each in state.attempts for claim in each.claims]
    return replace(
        found, parent=_known(reversed(claims), orchestrator), root=_known(claims, orchestrator)
    )


def _known(claims: Iterable[str], orchestrator: Orchestrator) -> str | None:
    """Return the first that Dagster still has: it shows no group of a run that was deleted."""
    return next((each for each in claims if orchestrator.find(each) is not None), None)
