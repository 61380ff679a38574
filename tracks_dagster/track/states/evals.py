"""What the track of a run says of its evals and its promotion: done, waived, owed. Pure.

What is done about it, which attempt is due and when an alias is given, is decided in `evals`.
"""

from __future__ import annotations

import re
from dataclasses import replace

from tracks_dagster.track.bodies import EvalOpened, EvalRequirement, ScoredEval
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.states.checkpoints import CheckpointRef, resume_target
from tracks_dagster.track.states.run_state import EvalState, RunState

HAS_ALL_STEPS = frozenset({TerminationReason.COMPLETED, TerminationReason.EARLY_STOPPED})
NOT_FINITE = "which is not a finite number"  # in the words of an eval that measured one
_ARTIFACT = re.compile(r"[A-Za-z0-9_@./%+= -]{1,100}")


def eval_id(suite: str, step: int) -> str:
    """Return the name of the eval of one suite on the checkpoint of one step."""
    return f"{suite}@{step}"


def result_key(run_id: str, eval_id: str, number: int) -> str:
    """Return the key under which the evaluator leaves what it measured."""
    return f"runs/{run_id}/evals/{eval_id}/{number}/result.json"


def started_key(result_key: str) -> str:
    """Return the key of what the evaluator writes first of all, beside what it will have measured."""
    return f"{result_key.rpartition('/')[0]}/started.json"


def artifact_key(result_key: str, name: str) -> str:
    """Return the key of a file that the eval left, beside what it measured."""
    return f"{result_key.rpartition('/')[0]}/artifacts/{name}"


def is_artifact_name(name: str) -> bool:
    """Whether a file that an eval left can have this name: a plain path below its folder."""
    parts = name.split("/")
    return _ARTIFACT.fullmatch(name) is not None and not {"", ".", ".."} & set(parts)


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


def scored_by(
    state: RunState, required: EvalRequirement, checkpoint: CheckpointRef
) -> ScoredEval | None:
    """Return what a scorer scores: the newest completed attempt at the eval that it is of, with its
    seed; None where there is none, and of an eval that is not a scorer."""
    source = _source_of(state, required)
    tries = [] if source is None else attempts_at(state, source, checkpoint)
    for each in reversed(tries):
        if each.ended is not None and is_completed(each):
            return ScoredEval(
                eval_id=each.opened.eval_id,
                number=each.opened.number,
                suite_version=each.opened.suite_version,
                snapshot=each.opened.snapshot,
                artifacts=each.ended.artifacts,
                message=each.ended.message,
            )
    return None


def lack_of_source(
    state: RunState, required: EvalRequirement, checkpoint: CheckpointRef
) -> str | None:
    """Say why a scorer has nothing to score; None where it has, and of an eval that is not a scorer."""
    source = f"{required.of}@{checkpoint.step} with seed {required.seed}"
    if not _lacks_source(state, required, checkpoint):
        return None
    if not _never_has_source(state, required, checkpoint):
        return f"waits for {source}, whose files it scores"
    return (
        f"has nothing to score: {source} did not complete, and is not tried again; `tracks eval "
        f"{state.run_id}@{checkpoint.step} --suite {required.of}` asks for it, "
        f'`tracks waive {state.run_id} {required.suite} --why "…"` lets the scorer go, too'
    )


def _lacks_source(state: RunState, required: EvalRequirement, checkpoint: CheckpointRef) -> bool:
    return required.of is not None and scored_by(state, required, checkpoint) is None


def _never_has_source(
    state: RunState, required: EvalRequirement, checkpoint: CheckpointRef
) -> bool:
    """Whether the eval that a scorer is of was let go, or failed and is not tried again."""
    if not _lacks_source(state, required, checkpoint):
        return False
    source = _source_of(state, required)
    if source is None or is_waived(state, source.suite):
        return True
    tries = attempts_at(state, source, checkpoint)
    return not source.is_required and bool(tries) and all(each.ended is not None for each in tries)


def _source_of(state: RunState, required: EvalRequirement) -> EvalRequirement | None:
    found = (each for each in state.declared.evals if each.suite == required.of)
    return next((replace(each, seed=required.seed) for each in found), None)


def is_lost(
    state: RunState,
    required: EvalRequirement,
    checkpoint: CheckpointRef,
    *,
    attempts_max: int | None,
) -> bool:
    """Whether an unsettled eval will not come by itself: it was tried as often as it is, or scores the
    files of one that will not come."""
    tries = attempts_at(state, required, checkpoint)
    has_ended = all(each.ended is not None for each in tries)
    is_exhausted = attempts_max is not None and len(tries) >= attempts_max and has_ended
    return is_exhausted or _never_has_source(state, required, checkpoint)


def is_waived(state: RunState, suite: str) -> bool:
    """Whether a person, or the study of a trial, let the evals of this suite go."""
    return any(waiver.body.suite == suite for waiver in state.waivers)


def needs_device(state: RunState, opened: EvalOpened) -> bool:
    """Whether an eval is given a device; a scorer is not, and one that the run did not declare is."""
    of_suite = [each for each in state.declared.evals if each.suite == opened.suite]
    return opened.scored is None and all(each.needs_device for each in of_suite)


def unsettled(state: RunState) -> tuple[EvalRequirement, ...]:
    """Return the declared evals that are neither done on the final checkpoint nor waived; one that is
    not required is done once it was tried."""
    checkpoint = final_checkpoint(state)
    return tuple(
        declared
        for declared in state.declared.evals
        if not is_waived(state, declared.suite)
        and (checkpoint is None or not _is_settled(state, declared, checkpoint))
    )


def _is_settled(state: RunState, declared: EvalRequirement, checkpoint: CheckpointRef) -> bool:
    tries = attempts_at(state, declared, checkpoint)
    if declared.is_required:
        return any(is_completed(each) for each in tries)
    if not tries:
        return _never_has_source(state, declared, checkpoint)
    return all(each.ended is not None for each in tries)


def evals_settled(state: RunState) -> bool:
    """Whether every declared eval is done on the run's final checkpoint, or waived."""
    return not unsettled(state)


def evaluates_commits(state: RunState) -> bool:
    """Whether the run has evals of commits while it trains."""
    return any(each.every is not None for each in state.declared.evals)


def what_evals_wait_for(state: RunState, *, attempts_max: int | None) -> tuple[str, ...]:
    """Say of each unsettled eval of a run that has all its steps what it waits for."""
    checkpoint = final_checkpoint(state)
    attempt = state.last_attempt
    if checkpoint is None:
        if attempt is None or attempt.reason not in HAS_ALL_STEPS:
            return ()
        return tuple(
            f"{each.suite}: no committed checkpoint is left to evaluate; {_let_it_go(state, each)}"
            for each in unsettled(state)
        )
    return tuple(
        _waits_for(state, required, checkpoint, attempts_max) for required in unsettled(state)
    )


def evals_for_a_person(state: RunState, *, attempts_max: int | None) -> tuple[str, ...]:
    """Say of each unsettled eval of a run that has all its steps, and that does not come by itself,
    what a person can do."""
    checkpoint = final_checkpoint(state)
    if checkpoint is None:
        return what_evals_wait_for(state, attempts_max=attempts_max)
    return tuple(
        _waits_for(state, each, checkpoint, attempts_max)
        for each in unsettled(state)
        if is_lost(state, each, checkpoint, attempts_max=attempts_max)
    )


def _let_it_go(state: RunState, required: EvalRequirement) -> str:
    return f'let it go: `tracks waive {state.run_id} {required.suite} --why "…"`'


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
            f"{name}: failed {len(before)} times, last: {last_line(ended.message if ended else '')}"
            f"; correct the cause, then `tracks eval {state.run_id}@{checkpoint.step}` asks for another"
            f" try, or {_let_it_go(state, required)}"
        )
    lack = lack_of_source(state, required, checkpoint)
    return f"{name}: {lack}" if lack else f"{name}: attempt {len(before) + 1} is due"


def last_line(text: str) -> str:
    """Return the last line of an end's message."""
    return (text.strip().splitlines() or ["no message"])[-1]


def promotion_is_due(state: RunState) -> bool:
    """Whether the run's own rule has to be decided on its final checkpoint now."""
    if final_checkpoint(state) is None or not evals_settled(state):
        return False
    return not promotion_is_settled(state)


def promotion_is_settled(state: RunState) -> bool:
    """Whether nothing is left to decide: no rule, its eval waived, or a decision made."""
    rule = state.declared.promotion
    if rule is None or is_waived(state, rule.suite):
        return True
    final = final_checkpoint(state)
    return any(p.body.alias == rule.alias and p.body.checkpoint == final for p in state.promotions)
