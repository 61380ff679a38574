"""What the sensor run_evals does beside deciding: close lost evals, request Dagster runs.

An eval whose Dagster runs died before its evaluator ran stays open: another run is asked for, later
each time (`attempts.launch`), and after FRUITLESS_RUNS_MAX the attempt ends.

Every step can be repeated, and done by two sensors at once; one run's trouble does not keep the
others waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

from tracks_dagster.attempts.effects.sharing import share_devices, waiting_launches
from tracks_dagster.attempts.effects.watch import survey
from tracks_dagster.attempts.effects.world import World
from tracks_dagster.attempts.launch import (
    FRUITLESS_RUNS_MAX,
    PendingLaunch,
    may_be_asked,
    next_number,
    pending_launch,
)
from tracks_dagster.attempts.ports import Orchestrator, OrchestratorRun
from tracks_dagster.evals.effects.promoting import Promotions
from tracks_dagster.evals.effects.running import Evals, end_eval, failed_end, has_run, stored_end
from tracks_dagster.evals.ports import Evaluator
from tracks_dagster.ledger.deciding import Decider
from tracks_dagster.ledger.effects.deciding import due_by_run, settle_all
from tracks_dagster.ledger.effects.ticks import ONE_BY_ONE, Tick, TimeSlice, take_turns
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.track import names
from tracks_dagster.track.bodies import EvalEnded, EvalOpened, PromotionDecided
from tracks_dagster.track.body_json import from_json
from tracks_dagster.track.names import parse_eval_attempt_key
from tracks_dagster.track.records import Kind, format_time
from tracks_dagster.track.states.evals import result_key

EVALS, PROMOTIONS = Evals(), Promotions()


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRequest:
    """A Dagster run to ask for: one attempt at one eval. run_key: as of `LaunchRequest`. lease_seq: of
    the lease of its device, None where it needs none of this machine."""

    run_id: str
    eval_key: str
    attempt_key: str
    run_key: str
    lease_seq: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalsOfRun:
    """What a tick found and did for one run. pending: what was asked for in vain so far."""

    requests: tuple[EvalRequest, ...]
    pending: tuple[PendingLaunch, ...]
    promotions: tuple[PromotionDecided, ...]


def tick_evals(
    world: World,
    time_slice: TimeSlice = ONE_BY_ONE,
    *,
    evaluator: Evaluator | None = None,
    is_promoting: bool = True,
) -> Tick[EvalsOfRun]:
    """Do what is due for every run, and return what Dagster has to be asked for.

    A finished run is looked at again while an eval of it that a person asked for is open, and while its
    promotion was refused for a quarantine. evaluator: ends what lost evals left. is_promoting: while
    nobody knows the policy, promotions wait.
    """
    deciders: tuple[Decider[World], ...] = (EVALS, PROMOTIONS) if is_promoting else (EVALS,)
    due = due_by_run(world, deciders)

    def look(run_id: str) -> Tick[EvalsOfRun]:
        if EVALS in due[run_id]:
            close_lost_evals(world.tracks, world.orchestrator, run_id, evaluator=evaluator)
        settled = settle_all(world, due[run_id], run_id)
        records = [each.record for each in settled.done if each.record is not None]
        promoted = [each for each in records if each.kind is Kind.PROMOTION_DECIDED]
        launches = [
            _launch(world, run_id, each.opened)
            for each in world.tracks.run(run_id).evals
            if each.ended is None
        ]
        return Tick(
            done=(
                EvalsOfRun(
                    requests=tuple(each for each, _ in launches if each is not None),
                    pending=tuple(each for _, each in launches if each is not None),
                    promotions=tuple(from_json(PromotionDecided, each.body) for each in promoted),
                ),
            ),
            decided=settled.decided,
            waiting=settled.waiting,
        )

    return _on_devices(world, take_turns(list(due), look, time_slice))


def _on_devices(world: World, tick: Tick[EvalsOfRun]) -> Tick[EvalsOfRun]:
    """Return the tick without the requests of evals that have no devices, and what those wait for."""
    if not any(run.requests for run in tick.done):
        return tick
    shared = share_devices(world, survey(world).done, by=names.RUN_EVALS)
    if shared is None:
        return tick
    done = tuple(
        replace(
            run,
            requests=tuple(
                replace(request, lease_seq=shared.seqs.get(request.attempt_key))
                for request in run.requests
                if shared.may_start(request.attempt_key)
            ),
        )
        for run in tick.done
    )
    waits = EvalsOfRun(
        requests=(),
        pending=tuple(
            each for each in waiting_launches(shared) if parse_eval_attempt_key(each.key)
        ),
        promotions=(),
    )
    words = (f"{each.key}: {each.why}" for each in waits.pending)
    return replace(
        tick,
        done=(*done, waits),
        waiting=(*tick.waiting, *words),
        problems=(*tick.problems, *shared.problems),
    )


def _launch(
    world: World, run_id: str, opened: EvalOpened
) -> tuple[EvalRequest | None, PendingLaunch | None]:
    """Return what to ask Dagster for, for an attempt that is open, and what was asked for in vain.

    The run key makes a second request harmless; asking Dagster first only saves words.
    """
    runs = _runs(world.orchestrator, run_id, opened)
    living = next((run for run in runs if not run.is_finished), None)
    over = [run for run in runs if run.is_finished]
    died = [run for run in over if not run.had_no_devices]
    is_due = living is None and may_be_asked(died, world.tracks.now())
    request = _request(run_id, opened, runs) if is_due else None
    if has_run(world.tracks, run_id, opened):
        return request, None
    key = names.eval_attempt_key(run_id, opened.eval_id, opened.number)
    return request, pending_launch(key, living, died)


def close_lost_evals(
    tracks: Tracks,
    orchestrator: Orchestrator,
    run_id: str,
    *,
    evaluator: Evaluator | None = None,
) -> list[EvalOpened]:
    """End and return every open attempt at an eval whose Dagster runs are over, if its evaluator ran.

    One that left a result before it was lost has ended with that. evaluator: ends what is left of its
    processes first, which hold its devices; one that somebody is still at is left to him.

    Dagster is asked before the track is read again, so an end that was recorded last is seen.
    """
    open_before = [e.opened for e in tracks.run(run_id).evals if e.ended is None]
    over = [(o, _lost_runs(_runs(orchestrator, run_id, o))) for o in open_before]
    state = tracks.run(run_id)
    still_open = {(e.opened.eval_id, e.opened.number) for e in state.evals if e.ended is None}
    lost = []
    for opened, dagster_runs in over:
        if not dagster_runs or (opened.eval_id, opened.number) not in still_open:
            continue
        ended = stored_end(tracks, state, opened) or _lost_end(tracks, run_id, opened, dagster_runs)
        key = result_key(run_id, opened.eval_id, opened.number)
        with evaluator.alone(key) if evaluator is not None else nullcontext(True) as is_alone:
            if ended is not None and is_alone:
                end_eval(tracks, run_id, ended)
                lost.append(opened)
    return lost


def _lost_end(
    tracks: Tracks, run_id: str, opened: EvalOpened, dagster_runs: Sequence[OrchestratorRun]
) -> EvalEnded | None:
    """Return the end of an attempt without a result; None while its evaluator is yet to run."""
    newest, now = dagster_runs[0], format_time(tracks.now())
    message = f"Dagster run {newest.dagster_run_id} is over and left no result."
    if not has_run(tracks, run_id, opened):
        if sum(not run.had_no_devices for run in dagster_runs) < FRUITLESS_RUNS_MAX:
            return None
        met = f", which met: {newest.problem}" if newest.problem else ""
        message = (
            f"{len(dagster_runs)} Dagster runs died before the evaluator ran, the last was "
            f"{newest.dagster_run_id}{met}."
        )
    return failed_end(
        opened,
        message,
        started_at=now,
        finished_at=now,
        dagster_run_id=newest.dagster_run_id,
    )


def _runs(orchestrator: Orchestrator, run_id: str, opened: EvalOpened) -> Sequence[OrchestratorRun]:
    key = names.eval_attempt_key(run_id, opened.eval_id, opened.number)
    return orchestrator.runs_of_eval(key)


def _lost_runs(runs: Sequence[OrchestratorRun]) -> Sequence[OrchestratorRun]:
    """Return `runs`, newest first, when all are over; none while one lives."""
    return runs if all(run.is_finished for run in runs) else ()


def _request(run_id: str, opened: EvalOpened, runs: Sequence[OrchestratorRun]) -> EvalRequest:
    key = names.eval_attempt_key(run_id, opened.eval_id, opened.number)
    number = next_number(key, runs)
    return EvalRequest(
        run_id=run_id,
        eval_key=names.eval_key(run_id, opened.eval_id),
        attempt_key=key,
        run_key=f"{key}/{number}" if number else key,
    )
