"""A promotion names everything that it rests on, or it is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.histories import History
from tracks_dagster.track.bodies import PromotionDecided, PromotionRule, SnapshotRef
from tracks_dagster.track.records import Kind
from tracks_dagster.track.states.evals import (
    NO_SEED,
    decide_promotion,
    objections,
    promotion_is_due,
    promotion_is_settled,
    propose,
)
from tracks_dagster.track.states.run_state import RunState


def evaluated(**changes: Any) -> History:
    """A run with all its steps and its eval: loss 3.25, the rule asks for at most 5.5."""
    history = History().declare(**changes).open().place().restore().commit(20).commit(40)
    history.end("completed", last_step=40).open_eval(history.state.resumable[-1])
    return history.end_eval(history.state.evals[-1].opened)


def proposal(state: RunState, **rule: Any) -> PromotionDecided:
    declared = state.declared.promotion
    assert declared is not None
    return propose(state, state.resumable[-1], replace(declared, **rule), decided_by="run_evals")


def test_a_complete_proposal_that_meets_its_threshold_is_promoted() -> None:
    state = evaluated().state
    decided = decide_promotion(state, proposal(state), why="The run's own rule:")
    assert decided.promoted
    assert decided.why == "The run's own rule: heldout-loss loss is 3.25, asked for is at most 5.5."
    assert (decided.eval_id, decided.eval_number) == ("heldout-loss@40", 1)
    assert decided.checkpoint.step == 40


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"alias": ""}, "alias missing"),
        ({"eval_id": ""}, "completed eval missing"),
        ({"eval_number": 0}, "completed eval missing"),
        ({"suite": ""}, "eval suite missing"),
        ({"suite_version": ""}, "eval suite version missing"),
        ({"snapshot": SnapshotRef(dataset="d", snapshot_id="")}, "eval snapshot missing"),
        ({"seed": NO_SEED}, "eval seed missing"),
        ({"environment_sha256": ""}, "eval environment missing"),
        ({"metrics": {}}, "metrics missing"),
        ({"metrics": {"accuracy": 0.9}}, "metric loss missing; the eval measured: accuracy"),
        ({"metric": ""}, "metric missing"),
        ({"threshold": math.nan}, "threshold missing"),
        ({"threshold": math.inf}, "threshold missing"),
        ({"decided_by": " "}, "decided_by missing"),
        ({"direction": "up"}, "direction 'up' is neither min nor max"),
        ({"metrics": {"loss": 5.6}}, "the threshold is not met: heldout-loss loss is 5.6, asked"),
        ({"metrics": {"loss": math.nan}}, "the threshold is not met"),
        ({"direction": "max"}, "asked for is at least 5.5"),
    ],
)
def test_a_proposal_that_lacks_one_thing_is_refused_by_its_name(
    change: dict[str, Any], said: str
) -> None:
    state = evaluated().state
    decided = decide_promotion(state, replace(proposal(state), **change), why="please")
    assert not decided.promoted
    assert said in decided.why
    assert "please" not in decided.why


def test_the_manifest_must_be_named_and_be_the_committed_one() -> None:
    state = evaluated().state
    good = proposal(state)
    unnamed = replace(good, checkpoint=replace(good.checkpoint, manifest_sha256=""))
    assert "manifest sha256 missing" in objections(state, unnamed)
    other = replace(good, checkpoint=replace(good.checkpoint, manifest_sha256="0" * 64))
    assert objections(state, other) == ("the checkpoint was never committed",)


@pytest.mark.parametrize("kind", [Kind.CHECKPOINT_QUARANTINED, Kind.CHECKPOINT_DELETED])
def test_a_checkpoint_that_cannot_be_resumed_is_refused(kind: Kind) -> None:
    history = evaluated()
    proposed = proposal(history.state)
    history.decide_checkpoint(kind, proposed.checkpoint)
    word = kind.value.removeprefix("checkpoint_")
    assert objections(history.state, proposed) == (f"the checkpoint is {word}",)


def test_a_superseded_checkpoint_may_be_promoted() -> None:
    history = evaluated()
    proposed = proposal(history.state)
    history.decide_checkpoint(Kind.CHECKPOINT_SUPERSEDED, proposed.checkpoint)
    assert objections(history.state, proposed) == ()


def test_without_a_completed_eval_everything_that_it_would_tell_is_named() -> None:
    history = evaluated()
    (against,) = objections(
        history.state,
        propose(
            history.state,
            history.state.resumable[0],  # step 20, which nobody evaluated
            PromotionRule(
                alias="best", suite="heldout-loss", metric="loss", direction="min", threshold=5.5
            ),
            decided_by="ann",
        ),
    )
    assert against == (
        "completed eval, eval suite version, eval snapshot, eval seed, eval environment, metrics "
        "missing"
    )


def test_a_failed_eval_does_not_count() -> None:
    history = History().declare().open().place().restore().commit(40).end("completed")
    history.open_eval(history.state.resumable[-1])
    history.end_eval(history.state.evals[-1].opened, "evaluator_error")
    assert "completed eval" in objections(history.state, proposal(history.state))[0]


def test_a_promotion_is_due_once_the_evals_are_settled_and_until_it_is_decided() -> None:
    history = History().declare().open().place().restore().commit(40).end("completed")
    assert not promotion_is_due(history.state)
    history.open_eval(history.state.resumable[-1])
    assert not promotion_is_due(history.state)
    history.end_eval(history.state.evals[-1].opened)
    assert promotion_is_due(history.state)
    assert not promotion_is_settled(history.state)
    history.promote(history.state.evals[-1].opened, promoted=False)
    assert not promotion_is_due(history.state)
    assert promotion_is_settled(history.state)


def test_nothing_is_due_without_a_rule_or_when_its_eval_was_waived() -> None:
    assert not promotion_is_due(evaluated(promotion=None).state)
    history = History().declare().open().place().restore().commit(40).end("completed")
    history.waive_eval()
    assert not promotion_is_due(history.state)
    assert promotion_is_settled(history.state)
