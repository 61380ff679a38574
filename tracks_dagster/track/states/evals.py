"""Which evals a run owes, which attempt at one is due, and whether they are settled. Pure.

What a run requires looks at its final checkpoint, once it has all its steps; a person may ask for an
eval of any committed one, with any seed. An eval has attempts of its own, under the evaluator's
budget: a failed evaluation never touches training.
"""

from __future__ import annotations

from tracks_dagster.track.bodies import EvalOpened, EvalRequirement
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.states.checkpoints import CheckpointRef, resume_target
from tracks_dagster.track.states.run_state import EvalState, RunState

HAS_ALL_STEPS = frozenset({TerminationReason.COMPLETED, TerminationReason.EARLY_STOPPED})


def eval_id(suite: str, step: int) -> str:
    """Return the name of the eval of one suite on the checkpoint of one step."""
    return f"{suite}@{step}"


def result_key(run_id: str, eval_id: str, number: int) -> str:
    """Return the key under which the evaluator leaves what it measured."""
    return f"runs/{run_id}/evals/{eval_id}/{number}/result.json"


def started_key(result_key: str) -> str:
    """Return the key of what the evaluator writes first of all, beside what it will have measured."""
    return f"{result_key.rpartition('/')[0]}/started.json"


def final_checkpoint(state: RunState) -> CheckpointRef | None:
    """Return the checkpoint that evals look at; None until the run has all its steps."""
    attempt = state.last_attempt
    if attempt is None or attempt.reason not in HAS_ALL_STEPS or not state.resumable:
        return None
    return resume_target(state.resumable)


def attempts_at(
    state: RunState, required: EvalRequirement, checkpoint: CheckpointRef
) -> list[EvalState]:
    """Return every attempt at this eval of this checkpoint, on the required data, oldest first."""
    return [
        e
        for e in state.evals
        if e.opened.checkpoint == checkpoint
        and (e.opened.suite, e.opened.suite_version) == (required.suite, required.suite_version)
        and (e.opened.snapshot, e.opened.seed) == (required.snapshot, required.seed)
    ]


def is_completed(evaluation: EvalState) -> bool:
    """Whether this attempt at an eval ended with metrics."""
    ended = evaluation.ended
    return ended is not None and ended.reason == TerminationReason.COMPLETED


def newest_completed(state: RunState, suite: str, checkpoint: CheckpointRef) -> EvalState | None:
    """Return the newest completed eval of `suite` on `checkpoint`, or None.

    With the seed that the run requires where there is one: what is decided by it must not depend on
    which of several seeds somebody liked.
    """
    done = [
        e
        for e in state.evals
        if is_completed(e) and e.opened.suite == suite and e.opened.checkpoint == checkpoint
    ]
    required = {each.seed for each in state.declared.evals if each.suite == suite}
    as_required = [e for e in done if e.opened.seed in required]
    return next(reversed(as_required or done), None)


def is_waived(state: RunState, suite: str) -> bool:
    """Whether a person let the evals of this suite go."""
    return any(waiver.body.suite == suite for waiver in state.waivers)


def unsettled(state: RunState) -> tuple[EvalRequirement, ...]:
    """Return the required evals that are neither done on the final checkpoint nor waived."""
    checkpoint = final_checkpoint(state)
    return tuple(
        required
        for required in state.declared.evals
        if not is_waived(state, required.suite)
        and (
            checkpoint is None
            or not any(is_completed(e) for e in attempts_at(state, required, checkpoint))
        )
    )


def evals_settled(state: RunState) -> bool:
    """Whether every eval that the run requires is done on its final checkpoint, or waived."""
    return not unsettled(state)


def next_eval(state: RunState, *, decided_by: str, attempts_max: int | None) -> EvalOpened | None:
    """Return the attempt at an eval that is due now; None when none is.

    attempts_max: at one eval of one checkpoint, None for no limit.
    """
    checkpoint = final_checkpoint(state)
    if checkpoint is None or state.finished is not None:
        return None
    for required in unsettled(state):
        before = attempts_at(state, required, checkpoint)
        is_exhausted = attempts_max is not None and len(before) >= attempts_max
        if is_exhausted or any(e.ended is None for e in before):
            continue
        decision = _decision(before, checkpoint, attempts_max)
        return next_attempt(state, required, checkpoint, decision=decision, decided_by=decided_by)
    return None


def next_attempt(
    state: RunState,
    required: EvalRequirement,
    checkpoint: CheckpointRef,
    *,
    decision: str,
    decided_by: str,
) -> EvalOpened:
    """Return the next attempt at this eval of this checkpoint."""
    name = eval_id(required.suite, checkpoint.step)
    return EvalOpened(
        eval_id=name,
        number=_next_number(state, name),
        checkpoint=checkpoint,
        suite=required.suite,
        suite_version=required.suite_version,
        snapshot=required.snapshot,
        seed=required.seed,
        decision=decision,
        decided_by=decided_by,
    )


def what_evals_wait_for(state: RunState, *, attempts_max: int | None) -> tuple[str, ...]:
    """Say of each unsettled eval of a run that has all its steps what it waits for."""
    checkpoint = final_checkpoint(state)
    attempt = state.last_attempt
    if checkpoint is None:
        has_all_steps = attempt is not None and attempt.reason in HAS_ALL_STEPS
        return ("no committed checkpoint is left to evaluate",) if has_all_steps else ()
    return tuple(
        _waits_for(state, required, checkpoint, attempts_max) for required in unsettled(state)
    )


def _next_number(state: RunState, name: str) -> int:
    """Number over all checkpoints of that step, so that no two results share a key."""
    return 1 + sum(e.opened.eval_id == name for e in state.evals)


def _decision(before: list[EvalState], checkpoint: CheckpointRef, attempts_max: int | None) -> str:
    if not before:
        return f"The run requires this eval of its final checkpoint, step {checkpoint.step}."
    of = "" if attempts_max is None else f" of {attempts_max}"
    ended = before[-1]
    why = ended.ended.message if ended.ended else ""
    return (
        f"Attempt {len(before) + 1}{of} at this eval: the one before "
        f"(record {ended.ended_seq}) failed: {_last_line(why)}"
    )


def _waits_for(
    state: RunState,
    required: EvalRequirement,
    checkpoint: CheckpointRef,
    attempts_max: int | None,
) -> str:
    name = eval_id(required.suite, checkpoint.step)
    before = attempts_at(state, required, checkpoint)
    running = next((e for e in before if e.ended is None), None)
    if running is not None:
        return f"{name}: attempt {running.opened.number} is under way"
    if attempts_max is not None and len(before) >= attempts_max:
        ended = before[-1].ended
        return (
            f"{name}: failed {len(before)} times, last: {_last_line(ended.message if ended else '')}"
            f"; correct the cause, then `tracks eval {state.run_id}@{checkpoint.step}` asks for another"
            f' try, or let it go: `tracks waive {state.run_id} {required.suite} --why "…"`'
        )
    return f"{name}: attempt {len(before) + 1} is due"


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]
