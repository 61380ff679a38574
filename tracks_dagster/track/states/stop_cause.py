"""Why training stopped where a checkpoint is: had it converged, all its steps, or was it cut off? Pure.

A checkpoint itself cannot say it: the same bytes are the end of one run and a moment of another.
"""

from __future__ import annotations

from enum import StrEnum

from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.states.checkpoints import CheckpointRef, resume_target
from tracks_dagster.track.states.run_state import AttemptState, RunState

CONVERGED_WORDS = "as it has converged"  # in the last word of a script that says so


class StopCause(StrEnum):
    """Each with its sentence in `describe_stop`."""

    CONVERGED = "converged"
    STEP_BUDGET = "step_budget"
    EARLY_STOP = "early_stop"
    CUT_OFF = "cut_off"
    TRAINED_ON = "trained_on"
    OPEN = "open"


def cause_of_end(attempt: AttemptState) -> StopCause | None:
    """Return why an attempt that did its work stopped; None of every other one."""
    if attempt.reason is TerminationReason.COMPLETED:
        return StopCause.STEP_BUDGET
    if attempt.reason is not TerminationReason.EARLY_STOPPED:
        return None
    lines = attempt.ended.lines if attempt.ended is not None else ()
    converged = any(CONVERGED_WORDS in line for line in lines)
    return StopCause.CONVERGED if converged else StopCause.EARLY_STOP


def stop_cause(state: RunState, ref: CheckpointRef) -> StopCause:
    """Return why the run's training stopped at a checkpoint of it, as far as is known now."""
    last = state.last_attempt
    if last is None or not state.resumable or ref != resume_target(state.resumable):
        return StopCause.TRAINED_ON
    if last.ended is None:
        return StopCause.OPEN
    cause = cause_of_end(last)
    if cause is None:
        return StopCause.CUT_OFF
    return cause if ref.step >= (last.ended.last_step or 0) else StopCause.TRAINED_ON


def check_not_cut_off(state: RunState, ref: CheckpointRef, doing: str) -> None:
    """Raise InvalidInput where training was cut off at a checkpoint: to hand it on takes --cut-off.

    doing: as in "promote step 40".
    """
    if stop_cause(state, ref) is StopCause.CUT_OFF:
        raise InvalidInput(
            f"Cannot {doing}: {describe_stop(state, ref)} It ends where time ran out, not where "
            "training did. --cut-off does it anyway. Nothing was written."
        )


def describe_stop(state: RunState, ref: CheckpointRef) -> str:
    """Return the same as a sentence."""
    cause, last = stop_cause(state, ref), state.last_attempt
    step = last.ended.last_step if last is not None and last.ended is not None else None
    match cause:
        case StopCause.CONVERGED:
            return "Training stopped there: its script says that it has converged."
        case StopCause.STEP_BUDGET:
            return "Training stopped there: it had all its steps."
        case StopCause.EARLY_STOP:
            return "Training stopped there: its script stopped early."
        case StopCause.CUT_OFF if last is not None:
            after = "" if step is None else f" after step {step}"
            return f"Training was cut off: attempt {last.attempt_id} ended{after} as {last.reason}."
        case StopCause.OPEN if last is not None:
            return f"Attempt {last.attempt_id} trains on after it."
        case _:
            return f"Training went on after it{'' if step is None else f', to step {step}'}."
