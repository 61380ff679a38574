"""A promotion names everything that it rests on, or it is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.bodies import declared
from tests.histories import History
from tracks_dagster.evals.promotion import (
    NO_SEED,
    decide_promotion,
    objections,
    propose,
    value_of_holder,
)
from tracks_dagster.track.bodies import (
    EvalRequirement,
    PromotionDecided,
    PromotionRule,
    SnapshotRef,
)
from tracks_dagster.track.records import Kind
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.states.evals import promotion_is_due, promotion_is_settled
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


# --- better than what has the alias -----------------------------------------------------------------

HOLDER = CheckpointRef("r-0", 1, 80, "runs/r-0/", "1" * 64)


@pytest.mark.parametrize(
    ("value", "direction", "better_by", "held", "is_promoted"),
    [
        (3.25, "min", 0.25, 3.5, True),
        (3.25, "min", 0.26, 3.5, False),
        (3.25, "min", 0.0, 3.25, True),
        (0.3, "max", 0.1, 0.2, True),  # 0.3 - 0.2 is 0.09999999999999998
        (0.3, "max", 0.1, 0.21, False),
        (0.3, "max", 0.1, None, False),  # measured in another way, or not at all
    ],
)
def test_it_is_better_than_what_has_the_alias_by_as_much_as_the_rule_asks(
    value: float, direction: str, better_by: float, held: float | None, is_promoted: bool
) -> None:
    state = evaluated().state
    threshold = 5.5 if direction == "min" else 0.0
    proposed = proposal(state, direction=direction, threshold=threshold, better_by=better_by)
    proposed = replace(proposed, metrics={"loss": value}, holder=HOLDER, holder_value=held)
    decided = decide_promotion(state, proposed, why="The run's own rule:")
    assert decided.promoted is is_promoted
    assert "step 80 of r-0, which has the alias" in decided.why


def test_nothing_is_compared_while_nothing_has_the_alias() -> None:
    state = evaluated().state
    decided = decide_promotion(state, proposal(state, better_by=1.0), why="The run's own rule:")
    assert decided.promoted


def test_the_holder_counts_where_it_was_measured_in_the_same_way() -> None:
    state = evaluated().state
    proposed, ref = proposal(state), state.resumable[-1]
    assert value_of_holder(state, ref, proposed) == 3.25
    for change in ({"seed": 8}, {"suite_version": "2"}, {"snapshot": None}, {"metric": "f1"}):
        assert value_of_holder(state, ref, replace(proposed, **change)) is None
    assert value_of_holder(state, HOLDER, proposed) is None


def test_another_required_eval_is_done_on_it_or_waived() -> None:
    other = EvalRequirement(suite="speed", suite_version="1", snapshot=None, seed=7)
    history = evaluated(evals=(*declared().evals, other))
    decided = decide_promotion(history.state, proposal(history.state), why="So:")
    assert (decided.promoted, decided.why) == (
        False,
        "the required eval speed is not done on it",
    )
    history.waive_eval("speed")
    assert decide_promotion(history.state, proposal(history.state), why="So:").promoted


def test_an_eval_without_data_of_ours_is_complete() -> None:
    state = evaluated().state
    assert objections(state, replace(proposal(state), snapshot=None)) == ()
