"""Which attempt at an eval is due now. Pure.

What a run declares looks at its final checkpoint, once it has all its steps, and where it says so at
every n-th commit before: there one at a time, the newest commit first, each tried once. A person may
ask for an eval of any committed one, with any seed. An eval has attempts of its own, under the
evaluator's budget: a failed evaluation never touches training. A scorer is an eval `of` another one:
it is due where that has completed, and the record that opens it names the files that it scores.
"""

from __future__ import annotations

from tracks_dagster.track.bodies import EvalOpened, EvalRequirement
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.states.evals import (
    attempts_at,
    eval_id,
    final_checkpoint,
    is_waived,
    lack_of_source,
    last_line,
    scored_by,
    unsettled,
)
from tracks_dagster.track.states.run_state import CheckpointState, EvalState, RunState


def next_eval(state: RunState, *, decided_by: str, attempts_max: int | None) -> EvalOpened | None:
    """Return the attempt at an eval that is due now; None when none is.

    attempts_max: at one eval of one checkpoint, None for no limit.
    """
    checkpoint = final_checkpoint(state)
    if state.finished is not None:
        return None
    if checkpoint is None:
        return _next_in_training(state, decided_by=decided_by)
    for required in unsettled(state):
        before = attempts_at(state, required, checkpoint)
        is_exhausted = attempts_max is not None and len(before) >= attempts_max
        is_open = any(e.ended is None for e in before)
        if is_exhausted or is_open or lack_of_source(state, required, checkpoint):
            continue
        skipped = tuple(
            each.ref.step for each in _untried(state, required) if each.ref != checkpoint
        )
        return next_attempt(
            state,
            required,
            checkpoint,
            decision=_decision(before, required, checkpoint, attempts_max),
            decided_by=decided_by,
            skipped=skipped,
        )
    return None


def _next_in_training(state: RunState, *, decided_by: str) -> EvalOpened | None:
    """Return the eval of a commit that is due while the run trains; None while one of it is open."""
    for declared in state.declared.evals:
        if declared.every is None or is_waived(state, declared.suite):
            continue
        if any(e.ended is None and e.opened.suite == declared.suite for e in state.evals):
            continue
        untried = _untried(state, declared)
        scorable = [each for each in untried if not lack_of_source(state, declared, each.ref)]
        usable = [each.ref for each in scorable if each.ref in state.resumable]
        if not usable:
            continue
        newest = usable[-1]
        skipped = tuple(each.ref.step for each in scorable if each.ref != newest)
        often = "each commit" if declared.every == 1 else f"one in {declared.every} commits"
        decision = f"The run asks for this eval of {often}, here of step {newest.step}."
        return next_attempt(
            state, declared, newest, decision=decision, decided_by=decided_by, skipped=skipped
        )
    return None


def _untried(state: RunState, declared: EvalRequirement) -> list[CheckpointState]:
    """Return the commits whose turn at this eval has come and is neither taken nor skipped, oldest
    first: each n-th commit of the run, in the order of their records."""
    if declared.every is None:
        return []
    own = [e.opened for e in state.evals if e.opened.brought is None]
    of_it = [opened for opened in own if opened.suite == declared.suite]
    seen = {opened.checkpoint for opened in of_it}
    last = max((each.seq for each in state.checkpoints if each.ref in seen), default=0)
    due = state.checkpoints[declared.every - 1 :: declared.every]
    return [each for each in due if each.seq > last]


def next_attempt(
    state: RunState,
    required: EvalRequirement,
    checkpoint: CheckpointRef,
    *,
    decision: str,
    decided_by: str,
    skipped: tuple[int, ...] = (),
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
        skipped=skipped,
        scored=scored_by(state, required, checkpoint),
    )


def _next_number(state: RunState, name: str) -> int:
    """Number over all checkpoints of that step, so that no two results share a key."""
    return 1 + sum(e.opened.eval_id == name for e in state.evals)


def _decision(
    before: list[EvalState],
    declared: EvalRequirement,
    checkpoint: CheckpointRef,
    attempts_max: int | None,
) -> str:
    if not before:
        verb = "requires" if declared.is_required else "asks for"
        return f"The run {verb} this eval of its final checkpoint, step {checkpoint.step}."
    of = "" if attempts_max is None else f" of {attempts_max}"
    ended = before[-1]
    why = ended.ended.message if ended.ended else ""
    return (
        f"Attempt {len(before) + 1}{of} at this eval: the one before "
        f"(record {ended.ended_seq}) failed: {last_line(why)}"
    )
