"""When a checkpoint is given an alias: what a promotion must rest on, and what is against it. Pure.

A promotion names the bytes (manifest sha256), how they were measured (suite, its version, snapshot,
seed, environment), what was measured, the threshold and who decided. Without any of these there is
none. An eval is found by what it measured, never by a name that a person gave.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tracks_dagster.track.bodies import DIRECTIONS, PromotionDecided, PromotionRule, SnapshotRef
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.states.evals import final_checkpoint, is_completed, is_waived
from tracks_dagster.track.states.exactness import inexact_resumes
from tracks_dagster.track.states.run_state import EvalState, RunState
from tracks_dagster.track.states.stop_cause import StopCause, describe_stop, stop_cause
from tracks_dagster.track.states.study_state import StudyState, Trial
from tracks_dagster.track.text.units import counted

NO_SEED = -1  # of a proposal without an eval: 0 is a seed like any other


def newest_completed(state: RunState, suite: str, checkpoint: CheckpointRef) -> EvalState | None:
    """Return the newest completed eval of `suite` on `checkpoint`, or None.

    With the seed that the run requires where there is one, and by the code that it declared: what is
    decided by it must not depend on which of several seeds or scorers somebody liked.
    """
    done = [e for e in _completed_at(state, checkpoint) if e.opened.suite == suite]
    required = {each.seed for each in state.declared.evals if each.suite == suite}
    as_required = [e for e in done if e.opened.seed in required]
    return next(reversed(as_required or done), None)


def _completed_at(state: RunState, checkpoint: CheckpointRef) -> list[EvalState]:
    """Return the completed evals of the checkpoint by code of the run."""
    own = [e for e in state.evals if e.opened.brought is None]
    return [e for e in own if is_completed(e) and e.opened.checkpoint == checkpoint]


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


def against_by_study(study: StudyState, trial: Trial) -> list[str]:
    """Say that a study with `repeat` is open: its best trial may yet be one with a lucky seed."""
    asked = study.declared.repeat
    if not asked or study.finished is not None:
        return []
    name, over = study.declared.study, len(trial.of_all_seeds[1:])
    return [
        f"the study {name} trains its best trials with other seeds first, and {over} of "
        f"{counted(asked['seeds'], 'other seed')} of trial {trial.number} are over. `tracks studies "
        f"{name}` says how far it is; `tracks stop {name}` ends it as it is"
    ]


def over_seeds(study: StudyState, trial: Trial) -> str:
    """Return mean and deviation of a trial's metric over its seeds, in words; empty for one seed."""
    spread = trial.mean_and_deviation
    if spread is None:
        return ""
    seeds = len(trial.repeats) + 1
    return f"Over {seeds} seeds {study.declared.metric} is {spread[0]:.4g} ± {spread[1]:.2g}."


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
