"""When a checkpoint may be given an alias: the rule, and what the record of a decision rests on. Pure.

A promotion names the bytes (manifest sha256), how they were measured (suite, its version, snapshot,
seed, environment), what was measured, the threshold and who decided. Without any of these there is
none. An eval is found by what it measured, never by a name that a person gave.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tracks_dagster.track.bodies import PromotionDecided, PromotionRule, SnapshotRef
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.states.evals import (
    evals_settled,
    final_checkpoint,
    is_waived,
    newest_completed,
)
from tracks_dagster.track.states.run_state import RunState

DIRECTIONS = ("min", "max")
NO_SEED = -1  # of a proposal without an eval: 0 is a seed like any other


def promotion_is_due(state: RunState) -> bool:
    """Whether the run's own rule has to be decided on its final checkpoint now."""
    if final_checkpoint(state) is None or not evals_settled(state):
        return False
    return not promotion_is_settled(state)


def promotion_is_settled(state: RunState) -> bool:
    """Whether nothing is left to decide: no rule, its eval waived, or a decision that stands."""
    rule = state.declared.promotion
    if rule is None or is_waived(state, rule.suite):
        return True
    final = final_checkpoint(state)
    return any(p.body.alias == rule.alias and p.body.checkpoint == final for p in state.promotions)


def promotion_is_on_hold(state: RunState) -> bool:
    """Whether the newest decision by the run's own rule refused its final checkpoint for a quarantine:
    it is made again once nothing in quarantine stands against it."""
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

    What no eval tells is left empty, for `objections` to name.
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
        decided_by=decided_by,
        why="",
    )


def decide_promotion(
    state: RunState, proposed: PromotionDecided, *, why: str, hold: str | None = None
) -> PromotionDecided:
    """Return the decision: promoted, with `why`, or not, with what stands against it.

    hold: what holds it back, in words: a source in quarantine that it descends from.
    """
    against = (*objections(state, proposed),)
    if hold is not None:
        against = (hold.rstrip("."), *against)
    if against:
        on_hold = hold is not None
        return replace(proposed, promoted=False, why="; ".join(against), is_withheld=on_hold)
    return replace(proposed, promoted=True, why=f"{_stopped(why)} {_comparison(proposed)}.".strip())


def _stopped(why: str) -> str:
    """Return a person's words as a sentence that another one can follow."""
    return why if why.endswith((".", "!", "?", ":")) else f"{why}."


def objections(state: RunState, proposed: PromotionDecided) -> tuple[str, ...]:
    """Return what stands against a promotion, in words; none allows it."""
    missing = _missing(proposed)
    if missing:
        return (f"{', '.join(missing)} missing", *_against_checkpoint(state, proposed))
    return (*_against_checkpoint(state, proposed), *_against_metric(proposed))


def _missing(proposed: PromotionDecided) -> list[str]:
    """Return the names of what the promotion must rest on and does not say."""
    needed = {
        "alias": proposed.alias,
        "manifest sha256": proposed.checkpoint.manifest_sha256,
        "completed eval": proposed.eval_id and proposed.eval_number,
        "eval suite": proposed.suite,
        "eval suite version": proposed.suite_version,
        "eval snapshot": proposed.snapshot.dataset and proposed.snapshot.snapshot_id,
        "eval seed": proposed.seed != NO_SEED,
        "eval environment": proposed.environment_sha256,
        "metrics": proposed.metrics,
        "metric": proposed.metric,
        "threshold": math.isfinite(proposed.threshold),
        "decided_by": proposed.decided_by.strip(),
    }
    return [name for name, value in needed.items() if not value]


def _against_checkpoint(state: RunState, proposed: PromotionDecided) -> list[str]:
    found = state.checkpoint(proposed.checkpoint.manifest_sha256)
    if found is None or found.ref != proposed.checkpoint:
        return ["the checkpoint was never committed"]
    if not found.is_resumable:
        return [f"the checkpoint is {found.status}"]
    return []


def _against_metric(proposed: PromotionDecided) -> list[str]:
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
    side = "at most" if proposed.direction == "min" else "at least"
    value = proposed.metrics[proposed.metric]
    return (
        f"{proposed.suite} {proposed.metric} is {value:.6g}, "
        f"asked for is {side} {proposed.threshold:.6g}"
    )
