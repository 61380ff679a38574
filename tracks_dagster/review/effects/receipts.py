"""The receipt of every attempt of a run: its state, its account of steps, its journal, its continuity.

One reading of the track and the journals that the outcome, `explain` and the report share. It writes
nothing and needs no ledger.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tracks_dagster.attempts.continuity import Continuity, attempt_losses, continuity
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.facts.attempt import AttemptView, attempt_views
from tracks_dagster.stores.journals import StepLine, read_steps
from tracks_dagster.track.names import ALERT_SAVE_FAILED, AttemptRef
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.states.accounting import StepAccount
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.states.lifecycle import RunStatus, run_status
from tracks_dagster.track.states.run_state import AttemptState, RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """All that is recorded of one attempt. view: what its facts are computed from, with the end of
    its journal; steps: the journal's, as far as it was shipped.

    last_committed_step: of the attempt's own newest checkpoint, None when it committed none.
    failed_saves: a sentence for each save that failed while training went on, in order.
    """

    view: AttemptView
    steps: tuple[StepLine, ...]
    continuity: Continuity | None
    last_committed_step: int | None
    failed_saves: tuple[str, ...] = ()

    @property
    def attempt(self) -> AttemptState:
        """The attempt, as its track shows it."""
        return self.view.attempt

    @property
    def account(self) -> StepAccount:
        """Its share of the run's steps, an open attempt's by its journal."""
        return self.view.account

    @property
    def kept_steps(self) -> tuple[StepLine, ...]:
        """The steps that the run's final weights rest on."""
        return tuple(s for s in self.steps if self.account.resume < s.step <= self.account.end)

    @property
    def lost_steps(self) -> tuple[StepLine, ...]:
        """The steps that no checkpoint holds, or that a later attempt ran again."""
        return tuple(s for s in self.steps if s.step > self.account.end)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReceipts:
    """A run and the receipts of its attempts, oldest first."""

    state: RunState
    status: RunStatus
    receipts: tuple[Receipt, ...]

    @property
    def final(self) -> CheckpointRef | None:
        """The run's final checkpoint; while it is open, the one that it would resume from."""
        finished = self.state.finished
        return self.state.resumes_from if finished is None else finished.final


def read_receipts(tracks: Tracks, run_id: str) -> RunReceipts:
    """Read a run's track and journals now and return its receipts; raises UnknownRun."""
    return receipts_of(tracks.store, tracks.run(run_id))


def receipts_of(store: ObjectStore, state: RunState) -> RunReceipts:
    """Read the journals of a run whose track was read before and return its receipts."""
    steps = [_steps(store, state.run_id, attempt) for attempt in state.attempts]
    losses = [
        attempt_losses(state, attempt, {step.step: step.loss for step in lines})
        for attempt, lines in zip(state.attempts, steps, strict=True)
    ]
    newest = {a.attempt_id: s[-1].step for a, s in zip(state.attempts, steps, strict=True) if s}
    views = attempt_views(state, newest)
    receipts = tuple(
        Receipt(
            view=_with_journal(view, steps[index]),
            steps=steps[index],
            continuity=continuity(losses[index], losses[:index]),
            last_committed_step=_last_committed_step(state, view.attempt.attempt_id),
            failed_saves=_failed_saves(state, view.attempt.attempt_id),
        )
        for index, view in enumerate(views)
    )
    return RunReceipts(state=state, status=run_status(state), receipts=receipts)


def _with_journal(view: AttemptView, steps: tuple[StepLine, ...]) -> AttemptView:
    if not steps:
        return view
    return replace(view, journal_step=steps[-1].step, journal_cursor=steps[-1].cursor_to)


def _last_committed_step(state: RunState, attempt_id: int) -> int | None:
    steps = [c.ref.step for c in state.checkpoints if c.ref.attempt_id == attempt_id]
    return max(steps, default=None)


def _failed_saves(state: RunState, attempt_id: int) -> tuple[str, ...]:
    return tuple(
        alert.body.text
        for alert in state.alerts
        if alert.attempt_id == attempt_id and alert.body.rule == ALERT_SAVE_FAILED
    )


def _steps(store: ObjectStore, run_id: str, attempt: AttemptState) -> tuple[StepLine, ...]:
    if attempt.placed is None:
        return ()
    return tuple(
        read_steps(store, AttemptRef(run_id, attempt.attempt_id), attempt.placed.launch_id)
    )
