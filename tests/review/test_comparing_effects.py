"""The attempts and checkpoints that a person names are found, with what they descend from."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bodies import HELDOUT
from tests.fakes import FakeObjectStore
from tests.histories import History
from tests.stories import RUN_ID, Story
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.review.comparing import Comparison
from tracks_dagster.review.effects.comparing import compare_named
from tracks_dagster.track.bodies import EvalOpened, SnapshotRef
from tracks_dagster.track.errors import InvalidInput, UnknownRun
from tracks_dagster.track.records import Kind


@pytest.fixture
def whole(story: Story, ledger: Ledger) -> Story:
    """The whole story, taken in by the ledger."""
    story.whole()
    Projector(story.store, ledger).scan()
    return story


def no_ledger() -> Ledger:
    raise AssertionError("attempts and steps are found in the tracks alone")


def compared(tracks: Tracks, a: str, b: str, *, is_forced: bool = False) -> Comparison:
    return compare_named(tracks, no_ledger, a, b, is_forced=is_forced)


def evaluated(history: History, *, seed: int = 7, **changes: Any) -> History:
    """Evaluate the newest checkpoint; `changes` replace fields of `eval_opened`."""
    ref = history.state.checkpoints[-1].ref
    number = 1 + sum(e.opened.checkpoint == ref for e in history.state.evals)
    fields: dict[str, Any] = {
        "eval_id": f"heldout-loss@{ref.step}",
        "number": number,
        "checkpoint": ref,
        "suite": "heldout-loss",
        "suite_version": "1",
        "snapshot": HELDOUT,
        "seed": seed,
        "decision": "It is required.",
        "decided_by": "tests",
    }
    history.add(Kind.EVAL_OPENED, EvalOpened(**fields | changes))
    return history.end_eval(history.state.evals[-1].opened)


def test_two_attempts_of_a_run_are_compared(whole: Story, tracks: Tracks) -> None:
    result = compared(tracks, f"{RUN_ID}/a01", f"{RUN_ID}/a03")
    steps = {line.name: (line.a, line.b) for line in result.steps}
    assert steps["last_step"] == (23, 40)
    assert steps["kept"] == (20, 10)
    assert steps["ended_as"] == ("preempted", "completed")
    assert {line.name for line in result.config} == {"micro_batch", "accumulation"}
    ancestor = result.descent.ancestor
    assert ancestor is not None
    assert (ancestor.step, result.descent.a_steps, result.descent.b_steps) == (20, 3, 20)
    assert result.shared_data.samples == 480


def test_a_checkpoint_descends_from_those_of_its_own_attempt_before_it(
    whole: Story, tracks: Tracks
) -> None:
    result = compared(tracks, f"{RUN_ID}@10", f"{RUN_ID}@20")
    assert result.descent.ancestor is not None
    assert result.descent.ancestor.step == 10
    assert (result.descent.a_steps, result.descent.b_steps) == (0, 10)


def test_a_branch_and_its_source_share_what_it_branched_from(
    tracks: Tracks, store: FakeObjectStore
) -> None:
    source = History("r-1").declare().open().place().restore().commit(20).commit(40)
    at_20 = source.state.checkpoints[0].ref
    branch = History("b-1").declare(branched_from=at_20).open().place().restore().commit(60)
    for history in (source.end("completed", last_step=40), branch):
        history.write_to(store)
    result = compared(tracks, "r-1@40", "b-1@60")
    assert result.descent.ancestor == at_20
    assert (result.descent.a_steps, result.descent.b_steps) == (20, 40)
    assert compared(tracks, "r-1/a01", "b-1/a01").descent.ancestor == at_20


def test_a_source_that_is_gone_ends_the_descent(tracks: Tracks, store: FakeObjectStore) -> None:
    source = History("r-1").declare().open().place().restore().commit(20)
    branch = History("b-1").declare(branched_from=source.state.checkpoints[0].ref)
    branch.open().place().restore().commit(30).commit(40).write_to(store)
    result = compared(tracks, "b-1@30", "b-1@40")
    assert result.descent.ancestor is not None
    assert result.descent.ancestor.step == 30


def test_a_manifest_names_a_checkpoint_no_matter_who_made_it(
    whole: Story, tracks: Tracks, ledger: Ledger
) -> None:
    first, last = (whole.history.state.checkpoints[i].ref.manifest_sha256 for i in (0, -1))
    result = compare_named(tracks, lambda: ledger, first, last[:16])
    assert result.a == f"{RUN_ID}@10 (attempt 1)"
    assert result.b == f"{RUN_ID}@40 (attempt 3)"
    with pytest.raises(UnknownRun, match="No committed checkpoint has a manifest"):
        compare_named(tracks, lambda: ledger, "f" * 64, last)


def test_evals_of_another_version_or_snapshot_are_refused_and_the_rest_is_shown(
    tracks: Tracks, store: FakeObjectStore
) -> None:
    history = History().declare().open().place().restore().commit(20)
    evaluated(history).commit(40)
    other = SnapshotRef(dataset=HELDOUT.dataset, snapshot_id="1" * 64)
    evaluated(history, suite_version="2", snapshot=other).write_to(store)
    result = compared(tracks, "r-1@20", "r-1@40")
    [refused] = result.refused
    assert "suite v1 against v2" in refused
    assert "eval snapshot" in refused
    assert result.evals[0].a is None
    assert {line.name: line.b for line in result.steps}["step"] == 40
    forced = compared(tracks, "r-1@20", "r-1@40", is_forced=True)
    assert forced.evals[0].b is not None
    assert "suite v1 against v2" in forced.evals[0].label


def test_of_several_measurements_with_one_seed_the_last_counts_and_seeds_are_gathered(
    tracks: Tracks, store: FakeObjectStore
) -> None:
    history = History().declare().open().place().restore().commit(20)
    for seed in (7, 7, 8):
        evaluated(history, seed=seed)
    history.commit(40)
    for seed in (7, 8):
        evaluated(history, seed=seed)
    history.write_to(store)
    [line] = compared(tracks, "r-1@20", "r-1@40").evals
    assert line.a is not None
    assert line.a.seeds == (7, 8)
    assert line.is_within_spread is True


def test_an_attempt_is_judged_by_its_newest_evaluated_checkpoint(
    tracks: Tracks, store: FakeObjectStore
) -> None:
    history = History().declare().open().place().restore().commit(20)
    evaluated(history).commit(40)
    evaluated(history).end("preempted", last_step=40).open().place().restore().write_to(store)
    [line] = compared(tracks, "r-1/a01", "r-1/a02").evals
    assert line.a is not None
    assert line.b is None


UNKNOWN = {
    "a run": (f"{RUN_ID[:-1]}/a01", f"did you mean {RUN_ID}"),
    "an attempt": (f"{RUN_ID}/a09", f"it has {RUN_ID}/a01 to {RUN_ID}/a03"),
    "a step": (
        f"{RUN_ID}@21",
        f"the nearest are {RUN_ID}@10, {RUN_ID}@20, {RUN_ID}@30, {RUN_ID}@40",
    ),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_for_what_is_not_there_the_nearest_is_offered(
    name: str, whole: Story, tracks: Tracks
) -> None:
    text, hint = UNKNOWN[name]
    with pytest.raises(UnknownRun, match=hint):
        compared(tracks, text, f"{RUN_ID}/a01")


def test_an_attempt_and_a_checkpoint_are_not_compared(whole: Story, tracks: Tracks) -> None:
    with pytest.raises(InvalidInput, match="an attempt and a checkpoint"):
        compared(tracks, f"{RUN_ID}/a01", f"{RUN_ID}@20")
