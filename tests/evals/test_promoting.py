"""A promotion is decided once by the run's own rule, or by a person, and is a record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.aliases import find_holder
from tests.deciders import decided_promotion, world_of
from tests.fakes import FakeClock, FakeObjectStore, SequentialUids
from tests.histories import History
from tests.studies.played import Played, make_study
from tracks_dagster.evals.effects.promoting import promote
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.retry.contracts import Contracts, PromotionContract
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.track.bodies import PromotionRule
from tracks_dagster.track.errors import InvalidInput, UnknownRun
from tracks_dagster.track.records import Kind
from tracks_dagster.track.states.checkpoints import CheckpointRef


def evaluated(
    store: FakeObjectStore,
    run_id: str = "r-1",
    threshold: float = 5.5,
    better_by: float | None = None,
    end: tuple[str, int] = ("completed", 40),
    **changes: Any,
) -> History:
    """A run with all its steps, unless its end is another; its newest checkpoint has a loss of 3.25."""
    rule = PromotionRule(
        alias="best",
        suite="heldout-loss",
        metric="loss",
        direction="min",
        threshold=threshold,
        better_by=better_by,
    )
    history = History(run_id).declare(promotion=rule, **changes)
    history.open().place().restore().commit(20).commit(40)
    history.end(end[0], last_step=end[1]).open_eval(history.state.resumable[-1])
    history.end_eval(history.state.evals[-1].opened).write_to(store)
    return history


def test_the_runs_own_rule_is_decided_once(tracks: Tracks, store: FakeObjectStore) -> None:
    evaluated(store)
    decided = decided_promotion(tracks, "r-1", by="run_evals")
    assert decided is not None
    assert decided.promoted
    assert decided.decided_by == "run_evals"
    assert decided_promotion(tracks, "r-1", by="run_evals") is None


def test_two_deciders_on_one_state_make_one_decision(
    tracks: Tracks, store: FakeObjectStore, clock: FakeClock, new_uid: SequentialUids
) -> None:
    evaluated(store)
    other = Tracks(store, now=clock, new_uid=new_uid, project=lambda track: None)
    other.run("r-1")
    made = [decided_promotion(each, "r-1", by="run_evals") for each in (tracks, other)]
    assert [decided is not None for decided in made] == [True, False]
    assert len(tracks.run("r-1").promotions) == 1


def test_a_threshold_that_is_not_met_is_a_recorded_refusal(
    tracks: Tracks, store: FakeObjectStore, ledger: Ledger
) -> None:
    evaluated(store, threshold=3.0)
    decided = decided_promotion(tracks, "r-1", by="run_evals")
    assert decided is not None
    assert not decided.promoted
    assert decided.why == (
        "the threshold is not met: heldout-loss loss is 3.25, asked for is at most 3"
    )
    assert tracks.run("r-1").promotions[0].body == decided
    assert find_holder(ledger, "best") is None


@pytest.mark.parametrize(("better_by", "is_promoted"), [(0.0, True), (0.1, False)])
def test_the_rule_compares_with_what_has_the_alias_in_the_same_project(
    tracks: Tracks, store: FakeObjectStore, ledger: Ledger, better_by: float, is_promoted: bool
) -> None:
    evaluated(store, "r-0")
    evaluated(store, "r-2", model_family="another-project")
    evaluated(store, better_by=better_by)
    for run_id in ("r-0", "r-2"):
        assert decided_promotion(tracks, run_id, by="run_evals") is not None
    decided = decided_promotion(tracks, "r-1", by="run_evals", ledger=ledger)
    assert decided is not None
    assert decided.promoted is is_promoted
    assert decided.holder is not None
    assert (decided.holder.run_id, decided.holder_value) == ("r-0", 3.25)
    assert "step 40 of r-0, which has the alias, has 3.25" in decided.why


def test_a_trial_is_promoted_once_its_study_has_tried_the_best_with_other_seeds(
    tracks: Tracks, store: FakeObjectStore
) -> None:
    repeat = {"best": 1, "seeds": 2}
    study = Played(make_study(trials=1, repeat=repeat), lambda config, steps: 3.25)
    trial = evaluated(store, "s-t000-r0", experiment="s").state.resumable[-1]
    other = evaluated(store, "not-a-trial", experiment="s").state.resumable[-1]
    study.decide()
    study.judge(study.state.open_rungs[0])
    study.decide()
    study.write_to(store)
    by_ann = {"alias": "production", "by": "ann", "why": "The best."}

    assert promote(world_of(tracks), other, **by_ann).promoted
    with pytest.raises(InvalidInput, match="0 of 2 other seeds of trial 0 are over") as refused:
        promote(world_of(tracks), trial, **by_ann)
    assert "`tracks stop s`" in str(refused.value)

    study.judge(study.state.open_rungs[0], worse_by=0.5)
    study.decide()
    study.judge(study.state.open_rungs[0], worse_by=1.0)
    study.decide()
    study.write_to(store)
    decided = promote(world_of(tracks), trial, **by_ann)
    assert "Over 3 seeds loss is 3.75 ± 0.5." in decided.why


def test_nothing_is_decided_before_the_evals_are_settled(
    tracks: Tracks, store: FakeObjectStore
) -> None:
    history = History().declare().open().place().restore().commit(40).end("completed")
    history.write_to(store)
    assert decided_promotion(tracks, "r-1", by="run_evals") is None


def test_a_person_promotes_to_another_alias_with_words(
    tracks: Tracks, store: FakeObjectStore, ledger: Ledger
) -> None:
    final = evaluated(store).state.resumable[-1]
    decided = promote(world_of(tracks), final, alias="production", by="ann", why="It reads well.")
    assert (decided.alias, decided.decided_by, decided.promoted) == ("production", "ann", True)
    assert decided.why.startswith("It reads well. heldout-loss loss is 3.25")
    holder = find_holder(ledger, "production")
    assert holder is not None
    assert (holder["run_id"], holder["decided_by"]) == ("r-1", "ann")
    assert holder["manifest_sha256"] == final.manifest_sha256


def test_what_was_cut_off_is_promoted_only_where_that_is_said(
    tracks: Tracks, store: FakeObjectStore
) -> None:
    history = evaluated(store, end=("preempted", 44))
    newest = history.state.resumable[-1]
    count = len(tracks.records("runs/r-1"))
    with pytest.raises(InvalidInput, match=r"ended after step 44 as preempted.*--cut-off"):
        promote(world_of(tracks), newest, alias="production", by="ann", why="It reads well.")
    assert len(tracks.records("runs/r-1")) == count
    decided = promote(
        world_of(tracks), newest, alias="x", by="ann", why="It will do.", may_be_cut_off=True
    )
    assert decided.promoted
    assert decided.stop_cause == "cut_off"
    assert "Training was cut off" in decided.why


def test_the_newest_promotion_over_all_runs_holds_an_alias(
    tracks: Tracks, store: FakeObjectStore, ledger: Ledger, clock: FakeClock
) -> None:
    for run_id in ("r-2", "r-1"):
        evaluated(store, run_id)
        clock.advance(60)
        decided_promotion(tracks, run_id, by="run_evals")
    holder = find_holder(ledger, "best")
    assert holder is not None
    assert holder["run_id"] == "r-1"
    assert holder["decided_at"] == clock.at


def test_a_person_is_refused_with_everything_that_is_missing_and_nothing_is_written(
    tracks: Tracks, store: FakeObjectStore
) -> None:
    history = evaluated(store)
    early, final = history.state.resumable
    count = len(tracks.records("runs/r-1"))
    for checkpoint, alias, by, why, said in (
        (
            early,
            "best",
            "ann",
            "please",
            r"eval seed.* missing\. The run's evals .* is completed on: r-1@40\. Nothing",
        ),
        (final, " ", "ann", "please", "alias missing"),
        (final, "best", " ", "please", "decided_by missing"),
        (final, "best", "ann", " ", "needs a reason"),
    ):
        with pytest.raises(InvalidInput, match=said):
            promote(world_of(tracks), checkpoint, alias=alias, by=by, why=why)
    assert len(tracks.records("runs/r-1")) == count


def test_a_person_cannot_promote_what_is_quarantined_or_was_never_committed(
    tracks: Tracks, store: FakeObjectStore
) -> None:
    history = evaluated(store)
    final = history.state.resumable[-1]
    made_up = CheckpointRef("r-1", 1, 40, final.object_prefix, "0" * 64)
    with pytest.raises(InvalidInput, match="the checkpoint was never committed"):
        promote(world_of(tracks), made_up, alias="best", by="ann", why="please")
    history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, final).write_to(store)
    with pytest.raises(InvalidInput, match="the checkpoint is quarantined"):
        promote(world_of(tracks), final, alias="best", by="ann", why="please")


def test_a_person_promotes_a_run_without_a_rule_and_the_record_says_so(
    tracks: Tracks, store: FakeObjectStore
) -> None:
    history = History().declare(promotion=None, evals=()).open().place().restore().commit(40)
    history.end("completed").write_to(store)
    final = history.state.resumable[-1]
    asks_for_seeds = replace(
        DEFAULT_POLICY, contracts=Contracts(promotion=PromotionContract(seeds=1))
    )
    with pytest.raises(
        InvalidInput, match=r"promotion\.seeds: r-1 was declared without a threshold"
    ):
        promote(
            world_of(tracks, policy=asks_for_seeds), final, alias="best", by="ann", why="please"
        )
    made_up = replace(final, manifest_sha256="0" * 64)
    with pytest.raises(InvalidInput, match="the checkpoint was never committed"):
        promote(world_of(tracks), made_up, alias="best", by="ann", why="please")
    decided = promote(world_of(tracks), final, alias="best", by="ann", why="It spells well.")
    assert (decided.promoted, decided.threshold, decided.eval_id) == (True, None, "")
    assert decided.why == (
        "It spells well. The run was declared without a promotion rule, so no threshold was asked for."
    )
    [promotion] = tracks.run("r-1").promotions
    assert promotion.body == decided


def test_what_was_better_is_not_replaced_in_silence(
    tracks: Tracks, store: FakeObjectStore, ledger: Ledger
) -> None:
    first = evaluated(store)  # a rule that does not compare
    assert decided_promotion(tracks, "r-1", by="run_evals") is not None
    second = History("r-2").declare(promotion=first.state.declared.promotion)
    second.open().place().restore().commit(20).commit(40).end("completed", last_step=40)
    second.open_eval(second.state.resumable[-1])
    second.end_eval(second.state.evals[-1].opened, metrics={"loss": 3.5}).write_to(store)
    decided = decided_promotion(tracks, "r-2", by="run_evals", ledger=ledger)
    assert decided is not None
    assert decided.promoted
    assert (
        "step 40 of r-1, which has the alias, has 3.25. That was better, and is replaced."
        in decided.why
    )


def test_a_promotion_in_a_run_that_does_not_exist_is_refused(tracks: Tracks) -> None:
    nowhere = CheckpointRef("nowhere", 1, 40, "runs/nowhere/", "0" * 64)
    with pytest.raises(UnknownRun):
        promote(world_of(tracks), nowhere, alias="best", by="ann", why="please")
