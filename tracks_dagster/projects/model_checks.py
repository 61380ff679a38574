"""What the checks of a model say of a checkpoint that was promoted: its rule and its evals. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tracks_dagster.projects.project import Project
from tracks_dagster.track import names
from tracks_dagster.track.bodies import PromotionDecided
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.states.run_state import RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCheck:
    """One check of a model: its name in Dagster, whether it passes, and why in words."""

    name: str
    passed: bool
    words: str


def check_model(
    project: Project, state: RunState, decided: PromotionDecided
) -> Iterator[ModelCheck]:
    """Yield what each check of the project's model says of a promotion of that run."""
    if project.promotion is not None:
        yield _rule(decided)
    done = {
        each.opened.suite
        for each in state.evals
        if each.opened.checkpoint == decided.checkpoint
        and each.ended is not None
        and each.ended.reason == TerminationReason.COMPLETED
    }
    for suite in (each.name for each in project.evals):
        has = "has" if suite in done else "has not"
        yield ModelCheck(
            name=names.eval_check(suite),
            passed=suite in done,
            words=f"{suite} {has} completed on these weights.",
        )


def _rule(decided: PromotionDecided) -> ModelCheck:
    value, bound = decided.metrics.get(decided.metric), decided.threshold
    is_met = (
        value is not None
        and bound is not None
        and (value >= bound if decided.direction == "max" else value <= bound)
    )
    side = "at least" if decided.direction == "max" else "at most"
    asked = "its run was declared without a rule" if bound is None else f"{side} {bound} is asked"
    words = (
        f"{decided.metric or 'no metric'}: {value}; {asked}. {decided.decided_by}: {decided.why}"
    )
    return ModelCheck(name=names.MEETS_ITS_RULE, passed=is_met, words=words)
