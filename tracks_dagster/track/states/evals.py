"""Evals and promotion: which a run owes, which attempt is due, and when an alias may be given. Pure.

What a run declares looks at its final checkpoint, once it has all its steps, and where it says so at
every n-th commit before: there one at a time, the newest commit first, each tried once. A person may
ask for an eval of any committed one, with any seed. An eval has attempts of its own, under the
evaluator's budget: a failed evaluation never touches training. A scorer is an eval `of` another one:
it is due where that has completed, and the record that opens it names the files that it scores.

A promotion names the bytes (manifest sha256), how they were measured (suite, its version, snapshot,
seed, environment), what was measured, the threshold and who decided. Without any of these there is
none. An eval is found by what it measured, never by a name that a person gave.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

from tracks_dagster.track.bodies import (
    EvalOpened,
    EvalRequirement,
    PromotionDecided,
    PromotionRule,
    ScoredEval,
    SnapshotRef,
)
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.states.checkpoints import CheckpointRef, resume_target
from tracks_dagster.track.states.exactness import inexact_resumes
from tracks_dagster.track.states.run_state import CheckpointState, EvalState, RunState
from tracks_dagster.track.states.stop_cause import StopCause, describe_stop, stop_cause

HAS_ALL_STEPS = frozenset({TerminationReason.COMPLETED, TerminationReason.EARLY_STOPPED})
DIRECTIONS = ("min", "max")
_ARTIFACT = re.compile(r"[A-Za-z0-9_@./%+= -]{1,100}")
NO_SEED = -1  # of a proposal without an eval: 0 is a seed like any other


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


def newest_completed(state: RunState, suite: str, checkpoint: CheckpointRef) -> EvalState | None:
    """Return the newest completed eval of `suite` on `checkpoint`, or None.

    With the seed that the run requires where there is one, and by the code that it declared: what is
    decided by it must not depend on which of several seeds or scorers somebody liked.
    """
    done = [e for e in _completed_at(state, checkpoint) if e.opened.suite == suite]
    required = {each.seed for each in state.declared.evals if each.suite == suite}
    as_required = [e for e in done if e.opened.seed in required]
    return next(reversed(as_required or done), None)


def scored_by(
    state: RunState, required: EvalRequirement, checkpoint: CheckpointRef
) -> ScoredEval | None:
    """Return what a scorer scores: the newest completed attempt at the eval that it is of, with its
    seed; None where there is none, and of an eval that is no scorer."""
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
    """Say why a scorer has nothing to score; None where it has, and of an eval that is no scorer."""
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


def _completed_at(state: RunState, checkpoint: CheckpointRef) -> list[EvalState]:
    """Return the completed evals of the checkpoint by code of the run."""
    own = [e for e in state.evals if e.opened.brought is None]
    return [e for e in own if is_completed(e) and e.opened.checkpoint == checkpoint]


def is_waived(state: RunState, suite: str) -> bool:
    """Whether a person let the evals of this suite go."""
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
        if is_exhausted or is_open or _lacks_source(state, required, checkpoint):
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


def evaluates_commits(state: RunState) -> bool:
    """Whether the run has evals of commits while it trains."""
    return any(each.every is not None for each in state.declared.evals)


def _next_in_training(state: RunState, *, decided_by: str) -> EvalOpened | None:
    """Return the eval of a commit that is due while the run trains; None while one of it is open."""
    for declared in state.declared.evals:
        if declared.every is None or is_waived(state, declared.suite):
            continue
        if any(e.ended is None and e.opened.suite == declared.suite for e in state.evals):
            continue
        untried = _untried(state, declared)
        scorable = [each for each in untried if not _lacks_source(state, declared, each.ref)]
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
    lack = lack_of_source(state, required, checkpoint)
    return f"{name}: {lack}" if lack else f"{name}: attempt {len(before) + 1} is due"


def _last_line(text: str) -> str:
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


def promotion_is_on_hold(state: RunState) -> bool:
    """Whether the run's own rule refused its final checkpoint for a quarantine, by the newest decision.

    It is decided again once that is released.
    """
    rule, final = state.declared.promotion, final_checkpoint(state)
    if rule is None or final is None:
        return False
    decided = [
        p.body
        for p in state.promotions
        if p.body.alias == rule.alias and p.body.checkpoint == final
    ]
    return bool(decided) and decided[-1].is_withheld


def propose(
    state: RunState, checkpoint: CheckpointRef, rule: PromotionRule, *, decided_by: str
) -> PromotionDecided:
    """Return the promotion of `checkpoint` by the newest completed eval, not judged yet.

    What no eval measured is left empty, for `objections` to name.
    """
    found = newest_completed(state, rule.suite, checkpoint)
    opened, ended = (found.opened, found.ended) if found is not None else (None, None)
    return PromotionDecided(
        alias=rule.alias,
        promoted=False,
        checkpoint=checkpoint,
        eval_id=opened.eval_id if opened else "",
        eval_number=opened.number if opened else 0,
        suite=opened.suite if opened else rule.suite,
        suite_version=opened.suite_version if opened else "",
        snapshot=opened.snapshot if opened else SnapshotRef(dataset="", snapshot_id=""),
        seed=opened.seed if opened else NO_SEED,
        environment_sha256=ended.environment_sha256 if ended else "",
        metrics=ended.metrics if ended else {},
        metric=rule.metric,
        direction=rule.direction,
        threshold=rule.threshold,
        better_by=rule.better_by,
        decided_by=decided_by,
        why="",
        stop_cause=stop_cause(state, checkpoint),
    )


def propose_without_rule(
    state: RunState, checkpoint: CheckpointRef, alias: str, *, decided_by: str
) -> PromotionDecided:
    """Return a person's promotion of a run that was declared without a rule: no threshold.

    It names the newest completed eval of the checkpoint, where there is one.
    """
    done = [e.opened for e in _completed_at(state, checkpoint)]
    suite = done[-1].suite if done else ""
    rule = PromotionRule(alias=alias, suite=suite, metric="", direction="", threshold=math.nan)
    proposed = replace(propose(state, checkpoint, rule, decided_by=decided_by), threshold=None)
    return proposed if done else replace(proposed, snapshot=None)


def value_of_holder(
    holder: RunState, ref: CheckpointRef, proposed: PromotionDecided
) -> float | None:
    """Return the metric of the checkpoint that has the alias, measured as the proposed one was; None
    where no completed eval of it has the same suite, version, snapshot and seed."""
    how = (proposed.suite, proposed.suite_version, proposed.snapshot, proposed.seed)
    found = [
        each.ended.metrics.get(proposed.metric)
        for each in holder.evals
        if each.ended is not None
        and is_completed(each)
        and each.opened.checkpoint == ref
        and how
        == (
            each.opened.suite,
            each.opened.suite_version,
            each.opened.snapshot,
            each.opened.seed,
        )
    ]
    return found[-1] if found else None


def decide_promotion(
    state: RunState,
    proposed: PromotionDecided,
    *,
    why: str,
    hold: str | None = None,
    by_policy: Sequence[str] = (),
) -> PromotionDecided:
    """Return the decision: promoted, with `why`, or not, with the objections.

    hold: what holds it back, in words: a source in quarantine that it descends from. by_policy: what
    the policy has against it.
    """
    against = (*objections(state, proposed), *(each.rstrip(".") for each in by_policy))
    if hold is not None:
        against = (hold.rstrip("."), *against)
    if against:
        on_hold = hold is not None
        return replace(proposed, promoted=False, why="; ".join(against), is_withheld=on_hold)
    inexact = inexact_resumes(state, attempt_id_max=proposed.checkpoint.attempt_id)
    is_plain = proposed.stop_cause == StopCause.STEP_BUDGET
    stopped = "" if is_plain else f"{describe_stop(state, proposed.checkpoint)} "
    words = f"{_stopped(why)} {_comparison(proposed)}. {_replaced(proposed)}{stopped}{inexact}"
    return replace(proposed, promoted=True, why=words.strip())


def _replaced(proposed: PromotionDecided) -> str:
    """Say where what had the alias was better; a rule without `better_by` does not ask for that."""
    value, before = proposed.metrics.get(proposed.metric), proposed.holder_value
    if value is None or before is None:
        return ""
    is_worse = value > before if proposed.direction == "min" else value < before
    return "That was better, and is replaced. " if is_worse else ""


def _stopped(why: str) -> str:
    """Return a person's words as a sentence that another one can follow."""
    return why if why.endswith((".", "!", "?", ":")) else f"{why}."


def objections(state: RunState, proposed: PromotionDecided) -> tuple[str, ...]:
    """Return the objections to a promotion, in words; none: it is allowed."""
    missing = _missing(proposed)
    if missing:
        return (f"{', '.join(missing)} missing", *_against_checkpoint(state, proposed))
    return (
        *_against_checkpoint(state, proposed),
        *_against_evals(state, proposed),
        *_against_metric(proposed),
        *_against_holder(proposed),
    )


def _missing(proposed: PromotionDecided) -> list[str]:
    """Return the names of what the promotion must rest on and does not say."""
    needed: dict[str, object] = {
        "alias": proposed.alias,
        "manifest sha256": proposed.checkpoint.manifest_sha256,
        "decided_by": proposed.decided_by.strip(),
    }
    rests_on = {
        "completed eval": proposed.eval_id and proposed.eval_number,
        "eval suite": proposed.suite,
        "eval suite version": proposed.suite_version,
        "eval snapshot": proposed.snapshot is None
        or (proposed.snapshot.dataset and proposed.snapshot.snapshot_id),
        "eval seed": proposed.seed != NO_SEED,
        "eval environment": proposed.environment_sha256,
        "metrics": proposed.metrics,
        "metric": proposed.metric,
        "threshold": math.isfinite(proposed.threshold or 0.0),
    }
    if proposed.threshold is not None:
        needed |= rests_on
    return [name for name, value in needed.items() if not value]


def _against_checkpoint(state: RunState, proposed: PromotionDecided) -> list[str]:
    found = state.checkpoint(proposed.checkpoint.manifest_sha256)
    if found is None or found.ref != proposed.checkpoint:
        return ["the checkpoint was never committed"]
    if not found.is_resumable:
        return [f"the checkpoint is {found.status}"]
    return []


def _against_evals(state: RunState, proposed: PromotionDecided) -> list[str]:
    """Name the other required evals that the checkpoint has not, unless they were waived."""
    missing = [
        each.suite
        for each in state.declared.evals
        if each.is_required
        and each.suite != proposed.suite
        and not is_waived(state, each.suite)
        and newest_completed(state, each.suite, proposed.checkpoint) is None
    ]
    return [f"the required eval {suite} is not done on it" for suite in missing]


def _against_holder(proposed: PromotionDecided) -> list[str]:
    """Say why it is not better than the checkpoint that has the alias, by as much as the rule asks."""
    value, holder, least = (
        proposed.metrics.get(proposed.metric),
        proposed.holder,
        proposed.better_by,
    )
    if holder is None or least is None or value is None:
        return []
    name = f"step {holder.step} of {holder.run_id}, which has the alias"
    if proposed.holder_value is None:
        return [
            f"it cannot be compared with {name}: that was not measured with the same version of "
            f"{proposed.suite} on the same data; `tracks promote` lets a person decide"
        ]
    gain = value - proposed.holder_value
    if proposed.direction == "min":
        gain = -gain
    # 0.3 - 0.2 is a little less than 0.1.
    is_met = gain >= least or math.isclose(gain, least, rel_tol=1e-9)
    return (
        [] if is_met else [f"it is not better by {least:.6g} than {name}: {_comparison(proposed)}"]
    )


def _against_metric(proposed: PromotionDecided) -> list[str]:
    if proposed.threshold is None:
        return []
    value = proposed.metrics.get(proposed.metric)
    if value is None:
        measured = ", ".join(sorted(proposed.metrics))
        return [f"metric {proposed.metric} missing; the eval measured: {measured}"]
    if proposed.direction not in DIRECTIONS:
        return [f"direction {proposed.direction!r} is neither min nor max"]
    is_met = (
        value <= proposed.threshold if proposed.direction == "min" else value >= proposed.threshold
    )
    # NaN meets no threshold: it compares false both ways.
    return [] if is_met else [f"the threshold is not met: {_comparison(proposed)}"]


def _comparison(proposed: PromotionDecided) -> str:
    if proposed.threshold is None:
        return "The run was declared without a promotion rule, so no threshold was asked for"
    side = "at most" if proposed.direction == "min" else "at least"
    value = proposed.metrics[proposed.metric]
    beside = ""
    if proposed.holder is not None and proposed.holder_value is not None:
        name = f"step {proposed.holder.step} of {proposed.holder.run_id}"
        beside = f"; {name}, which has the alias, has {proposed.holder_value:.6g}"
    return (
        f"{proposed.suite} {proposed.metric} is {value:.6g}, "
        f"asked for is {side} {proposed.threshold:.6g}{beside}"
    )
