"""What the sensor run_evals does in a tick: close evals that were lost, open those that are due, and
decide the promotion of a run whose evals are settled.

An eval whose Dagster runs died before its evaluator ran stays open: another run is asked for, later
each time (`attempts.effects.launch`), and after FRUITLESS_RUNS_MAX the attempt ends.

Every step can be repeated, and done by two sensors at once; one run's trouble does not keep the
others waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tracks_dagster.attempts.effects.launch import (
    FRUITLESS_RUNS_MAX,
    PendingLaunch,
    may_be_asked,
    pending_launch,
)
from tracks_dagster.attempts.ports import Orchestrator, OrchestratorRun
from tracks_dagster.data.effects.evals import (
    attempts_allowed,
    end_eval,
    failed_end,
    has_run,
    open_due_evals,
    stored_end,
    why_on_hold,
)
from tracks_dagster.data.effects.promotion import decide_promotion
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.retry.effects.due import (
    open_run_ids,
    over_with_open_evals,
    runs_with_promotion_on_hold,
)
from tracks_dagster.retry.policy import RetryPolicy
from tracks_dagster.track import names
from tracks_dagster.track.bodies import EvalEnded, EvalOpened, PromotionDecided
from tracks_dagster.track.errors import TracksError
from tracks_dagster.track.records import format_time
from tracks_dagster.track.states import evals
from tracks_dagster.track.states.run_state import RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRequest:
    """A Dagster run to ask for: one attempt at one eval. run_key: as of `LaunchRequest`."""

    run_id: str
    eval_key: str
    attempt_key: str
    run_key: str


@dataclass(slots=True, kw_only=True)
class EvalTick:
    """What a tick found and did. waiting, problems: in words, for the sensor's log. pending: what was
    asked for and has not led to anything."""

    requests: list[EvalRequest] = field(default_factory=list)
    promotions: list[PromotionDecided] = field(default_factory=list)
    pending: list[PendingLaunch] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def tick_evals(
    tracks: Tracks,
    ledger: Ledger,
    orchestrator: Orchestrator,
    *,
    decided_by: str,
    policy: RetryPolicy,
) -> EvalTick:
    """Do what is due for every open run, and return what Dagster has to be asked for.

    A finished run is looked at again while an eval of it that a person asked for is open, and while its
    promotion was refused for a quarantine.
    """
    tick = EvalTick()
    for run_id in (*open_run_ids(ledger), *over_with_open_evals(ledger)):
        try:
            _tick_run(tick, tracks, orchestrator, run_id, decided_by, policy)
        except TracksError as error:
            tick.problems.append(f"{run_id}: {error}")
    for run_id in runs_with_promotion_on_hold(ledger, tracks.now()):
        try:
            _tick_promotion(tick, tracks, run_id, decided_by)
        except TracksError as error:
            tick.problems.append(f"{run_id}: {error}")
    return tick


def close_lost_evals(tracks: Tracks, orchestrator: Orchestrator, run_id: str) -> list[EvalOpened]:
    """End every open attempt at an eval whose Dagster runs are all over, if its evaluator ran; return
    those. One that left a result before it was lost has ended with that.

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
        if ended is not None:
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
        if len(dagster_runs) < FRUITLESS_RUNS_MAX:
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


def _tick_run(
    tick: EvalTick,
    tracks: Tracks,
    orchestrator: Orchestrator,
    run_id: str,
    decided_by: str,
    policy: RetryPolicy,
) -> None:
    if not _may_owe_evals(tracks.run(run_id)):
        return
    close_lost_evals(tracks, orchestrator, run_id)
    for opened in open_due_evals(tracks, run_id, decided_by=decided_by, policy=policy):
        # The run key makes a second request harmless; asking Dagster first only saves words.
        runs = _runs(orchestrator, run_id, opened)
        living = next((run for run in runs if not run.is_finished), None)
        died = [run for run in runs if run.is_finished]
        if living is None and may_be_asked(died, tracks.now()):
            tick.requests.append(_request(run_id, opened, len(died)))
        if not has_run(tracks, run_id, opened):
            key = names.eval_attempt_key(run_id, opened.eval_id, opened.number)
            pending = pending_launch(key, living, died)
            tick.pending += [] if pending is None else [pending]
    state = tracks.run(run_id)
    attempts_max = attempts_allowed(policy)
    tick.waiting += [
        f"{run_id}: {words}"
        for words in evals.what_evals_wait_for(state, attempts_max=attempts_max)
    ]
    on_hold = why_on_hold(tracks, state, policy)
    if on_hold is not None:
        tick.waiting.append(f"{run_id}: {on_hold}")
    _tick_promotion(tick, tracks, run_id, decided_by)


def _tick_promotion(tick: EvalTick, tracks: Tracks, run_id: str, decided_by: str) -> None:
    promoted = decide_promotion(tracks, run_id, decided_by=decided_by)
    if promoted is not None:
        tick.promotions.append(promoted)


def _may_owe_evals(state: RunState) -> bool:
    """Whether a run has all its steps, or an eval under way; most runs train and are passed by."""
    attempt = state.last_attempt
    has_all_steps = attempt is not None and attempt.reason in evals.HAS_ALL_STEPS
    return has_all_steps or any(e.ended is None for e in state.evals)


def _runs(orchestrator: Orchestrator, run_id: str, opened: EvalOpened) -> Sequence[OrchestratorRun]:
    key = names.eval_attempt_key(run_id, opened.eval_id, opened.number)
    return orchestrator.runs_of_eval(key)


def _lost_runs(runs: Sequence[OrchestratorRun]) -> Sequence[OrchestratorRun]:
    """Return `runs`, newest first, when all are over; none while one lives."""
    return runs if all(run.is_finished for run in runs) else ()


def _request(run_id: str, opened: EvalOpened, died_count: int) -> EvalRequest:
    key = names.eval_attempt_key(run_id, opened.eval_id, opened.number)
    return EvalRequest(
        run_id=run_id,
        eval_key=names.eval_key(run_id, opened.eval_id),
        attempt_key=key,
        run_key=f"{key}/{died_count}" if died_count else key,
    )
