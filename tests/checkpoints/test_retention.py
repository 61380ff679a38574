"""What may go, what must stay and why; and what no writer of ours may append."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.bodies import BEGIN
from tests.histories import History
from tracks_dagster.checkpoints.retention import (
    Deletion,
    Fate,
    check_rule,
    judge,
    plan_deletions,
    still_asked_for,
)
from tracks_dagster.track.bodies import CheckpointDecision, CheckpointVerified, RetentionRule
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import InvalidDecision, InvalidInput, TrackBroken, UnknownRun
from tracks_dagster.track.records import Draft, Kind
from tracks_dagster.track.states import run_fold
from tracks_dagster.track.states.checkpoints import CheckpointRef, parse_at
from tracks_dagster.track.states.protection import pins_of
from tracks_dagster.track.states.run_state import find_at

LATER = BEGIN + timedelta(days=1)
RULE = RetentionRule(keep_last=2, keep_best=0, delete_after_s=60.0)


def trained(*losses: float, rule: RetentionRule = RULE) -> History:
    """A run with a commit every 10 steps, the newest of which was verified."""
    history = History().declare(retention=rule).open().place().restore()
    for number, loss in enumerate(losses, start=1):
        history.commit(10 * number, metrics={"loss": loss})
    return verified(history, ref(history, -1))


def verified(history: History, of: CheckpointRef) -> History:
    body = CheckpointVerified(manifest_sha256=of.manifest_sha256, by="tests", total_bytes=9)
    return history.add(Kind.CHECKPOINT_VERIFIED, body)


def ref(history: History, index: int) -> CheckpointRef:
    return history.state.checkpoints[index].ref


def fates(history: History) -> dict[int, str]:
    return {j.checkpoint.ref.step: j.fate.name for j in judge(history.state, LATER)}


def check(history: History, kind: Kind, of: CheckpointRef, pin: str | None = None) -> None:
    """Ask the rule of append whether this decision may come next."""
    body = CheckpointDecision(manifest_sha256=of.manifest_sha256, by="x", why="x", pin=pin)
    run_fold.check(history.state, Draft(uid="u", kind=kind, body=to_json(body)))


@pytest.mark.parametrize(
    ("changes", "let_go"),
    [
        ({}, [10, 20, 30]),  # the last 2 of 5
        ({"keep_last": 4}, [10]),
        ({"keep_last": 9}, []),
        ({"keep_best": 1}, [10, 30]),  # 20 has the least loss
        ({"keep_best": 1, "direction": "max"}, [20, 30]),
        ({"keep_best": 1, "metric": "accuracy"}, [10, 20, 30]),  # nobody measured it
        ({"milestone_every_steps": 20}, [10, 30]),
    ],
)
def test_the_rule_keeps_the_last_the_best_and_milestones(
    changes: dict[str, Any], let_go: list[int]
) -> None:
    history = trained(9.0, 1.0, 5.0, 4.0, 3.0, rule=replace(RULE, **changes))
    found = [step for step, fate in fates(history).items() if fate == "SUPERSEDE"]
    assert found == let_go


@pytest.mark.parametrize(
    ("metric", "words"),
    [("loss", "training loss of this step alone 1"), ("val_loss", "val_loss 0.5")],
)
def test_the_best_says_what_it_is_the_best_by(metric: str, words: str) -> None:
    rule = replace(RULE, keep_best=1, metric=metric)
    history = History().declare(retention=rule).open().place().restore()
    history.commit(10, metrics={"loss": 1.0, "val_loss": 0.5})
    assert f"number 1 of the best 1: {words}" in judge(history.state, LATER)[0].why


def test_nothing_goes_while_the_newest_was_not_verified_by_a_read() -> None:
    history = trained(4.0, 3.0, 2.0).commit(40)
    assert set(fates(history).values()) == {"KEEP"}
    words = judge(history.state, LATER)[0].why
    assert words == ("the newest commit, step 40, was not verified by a read yet",)
    with pytest.raises(InvalidDecision, match="step 40, was not verified"):
        check(history, Kind.CHECKPOINT_SUPERSEDED, ref(history, 0))


def test_a_restore_counts_as_a_verification() -> None:
    history = History().declare().open().place().restore().commit(10).end("preempted")
    history.open().place().restore()
    assert history.state.checkpoints[0].verified_at == history.state.attempts[1].restored_at


def test_a_quarantined_checkpoint_takes_no_place_of_the_last() -> None:
    history = trained(5.0, 4.0, 3.0, 2.0)
    history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, ref(history, 2))
    assert fates(history) == {10: "SUPERSEDE", 20: "KEEP", 30: "DELETE", 40: "KEEP"}


def test_what_is_superseded_is_deleted_after_the_grace_and_no_sooner() -> None:
    history = trained(4.0, 3.0, 2.0)
    history.decide_checkpoint(Kind.CHECKPOINT_SUPERSEDED, ref(history, 0))
    at = history.state.checkpoints[0].superseded_at
    assert at is not None
    assert judge(history.state, at + timedelta(seconds=59))[0].fate is Fate.KEEP
    assert "grace until" in judge(history.state, at)[0].why[-1]
    assert judge(history.state, at + timedelta(seconds=60))[0].fate is Fate.DELETE


def test_a_superseded_checkpoint_that_is_the_last_again_stays() -> None:
    history = trained(4.0, 3.0, 2.0)
    history.decide_checkpoint(Kind.CHECKPOINT_SUPERSEDED, ref(history, 0))
    for index in (1, 2):
        history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, ref(history, index))
    assert fates(history)[10] == "KEEP"


def test_evals_and_promotions_pin_by_what_the_track_says_of_them() -> None:
    history = trained(4.0, 3.0, 2.0).open_eval(ref(trained(4.0, 3.0, 2.0), 0))
    opened = history.state.evals[0].opened
    first, second, _ = history.state.checkpoints
    assert pins_of(history.state, first) == ("eval:heldout-loss@10",)
    history.end_eval(opened).promote(opened)
    assert pins_of(history.state, first) == ("promotion:best",)
    history.open_eval(second.ref).end_eval(history.state.evals[1].opened)
    history.promote(history.state.evals[1].opened)
    assert pins_of(history.state, first) == ()  # the alias has gone on
    assert pins_of(history.state, second) == ("promotion:best",)


def test_an_eval_that_is_due_pins_the_final_checkpoint() -> None:
    history = trained(4.0, 3.0).end("completed")
    assert pins_of(history.state, history.state.checkpoints[-1]) == ("eval:heldout-loss@20",)


def test_no_writer_may_let_go_of_what_is_held() -> None:
    history = trained(4.0, 3.0, 2.0)
    with pytest.raises(InvalidDecision, match="a resume starts from it"):
        check(history, Kind.CHECKPOINT_SUPERSEDED, ref(history, 2))
    with pytest.raises(InvalidDecision, match="neither superseded nor quarantined"):
        check(history, Kind.CHECKPOINT_DELETED, ref(history, 0))
    history.decide_checkpoint(Kind.CHECKPOINT_PINNED, ref(history, 0), pin="hold:ann")
    with pytest.raises(InvalidDecision, match="pinned by hold:ann"):
        check(history, Kind.CHECKPOINT_SUPERSEDED, ref(history, 0))


def test_nothing_is_deleted_while_an_open_attempt_has_not_restored() -> None:
    history = trained(4.0, 3.0, 2.0)
    history.decide_checkpoint(Kind.CHECKPOINT_SUPERSEDED, ref(history, 0)).end("preempted").open()
    with pytest.raises(InvalidDecision, match="attempt 2 is open and has not restored"):
        check(history, Kind.CHECKPOINT_DELETED, ref(history, 0))
    history.place().restore()
    check(history, Kind.CHECKPOINT_DELETED, ref(history, 0))


def test_what_the_open_attempt_restored_stays_also_when_it_is_quarantined() -> None:
    history = trained(4.0, 3.0).end("preempted").open().place().restore().commit(30)
    for index, words in ((1, "restored it"), (2, "newest commit of attempt 2")):
        history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, ref(history, index))
        with pytest.raises(InvalidDecision, match=words):
            check(history, Kind.CHECKPOINT_DELETED, ref(history, index))


def test_the_last_verified_stays_while_a_newer_one_was_not_read() -> None:
    history = trained(4.0, 3.0)
    verified(history, ref(history, 0))
    history.decide_checkpoint(Kind.CHECKPOINT_SUPERSEDED, ref(history, 0))
    history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, ref(history, 1))
    history.commit(30).end("preempted")
    with pytest.raises(InvalidDecision, match="the last one that was verified"):
        check(history, Kind.CHECKPOINT_DELETED, ref(history, 0))


@pytest.mark.parametrize("kind", [Kind.CHECKPOINT_PINNED, Kind.CHECKPOINT_QUARANTINED])
def test_a_deleted_checkpoint_is_of_no_use_to_anybody(kind: Kind) -> None:
    history = trained(4.0, 3.0)
    history.decide_checkpoint(Kind.CHECKPOINT_DELETED, ref(history, 0))
    with pytest.raises(InvalidDecision, match="is deleted and cannot be"):
        check(history, kind, ref(history, 0), pin="hold:ann")
    history.open_eval(ref(history, 0))
    draft = history.drafts[-1]
    with pytest.raises(InvalidDecision, match="cannot be evaluated"):
        run_fold.check(history.state, draft)


@pytest.mark.parametrize(
    "changed",
    [
        {"run_id": "r-2"},
        {"attempt_id": 2},
        {"object_prefix": "runs/r-2/attempts/1/launch-1/step-10/"},
        {"object_prefix": "runs/r-1/attempts/1/launch-1/step-20/"},
    ],
)
def test_a_commit_names_only_what_its_own_launch_wrote(changed: dict[str, Any]) -> None:
    history = trained(4.0)
    body = replace(history.state.checkpoints[0].body, ref=replace(ref(history, 0), **changed))
    with pytest.raises(TrackBroken, match="an object prefix of another"):
        history.add(Kind.CHECKPOINT_COMMITTED, body, attempt_id=1)


def test_a_deletion_takes_the_chunks_that_nobody_else_names() -> None:
    history = trained(4.0, 3.0, 2.0, 1.0)
    history.decide_checkpoint(Kind.CHECKPOINT_SUPERSEDED, ref(history, 0))
    history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, ref(history, 1))
    own = "runs/r-1/attempts/1/x/chunks/"
    names = [{own + "a": 1, own + "b": 2, own + "c": 4, "runs/r-2/attempts/1/d": 8}]
    names += [{own + "b": 2}, {own + "c": 4}, {}]  # b is needed by a quarantined one only
    state = history.state
    named = {c.ref.manifest_sha256: n for c, n in zip(state.checkpoints, names, strict=True)}
    superseded, quarantined = plan_deletions(state, LATER, named)
    assert isinstance(superseded, Deletion)
    assert superseded.chunks == {own + "a": 1}
    assert isinstance(quarantined, Deletion)
    assert quarantined.chunks == {own + "b": 2}  # by then the other is deleted
    del named[ref(history, 2).manifest_sha256]
    waiting = plan_deletions(state, LATER, named)
    assert "the manifest of step 30 of attempt 1 cannot be read" in str(waiting[0])


def test_a_chunk_that_only_due_checkpoints_share_goes_with_the_last_of_them() -> None:
    history = trained(4.0, 3.0, 2.0, 1.0, 0.5)
    for index in (0, 1):
        history.decide_checkpoint(Kind.CHECKPOINT_SUPERSEDED, ref(history, index))
    chunk = "runs/r-1/attempts/1/x/chunks/a"
    named = {c.ref.manifest_sha256: {chunk: 1} for c in history.state.checkpoints[:2]}
    named |= {c.ref.manifest_sha256: {} for c in history.state.checkpoints[2:]}
    first, second = plan_deletions(history.state, LATER, named)
    assert isinstance(first, Deletion)
    assert isinstance(second, Deletion)
    assert (first.chunks, second.chunks) == ({}, {chunk: 1})
    assert still_asked_for(first, history.state, LATER, named)
    assert not still_asked_for(second, history.state, LATER, named | {"committed since": {}})


def test_two_quarantined_checkpoints_without_a_manifest_do_not_wait_for_each_other() -> None:
    history = trained(4.0, 3.0, 2.0)
    for index in (0, 1):
        history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, ref(history, index))
    newest = {ref(history, 2).manifest_sha256: {"runs/r-1/attempts/1/x/chunks/a": 1}}
    for planned in plan_deletions(history.state, LATER, newest):
        assert isinstance(planned, Deletion)
        assert planned.chunks == {}


def test_a_quarantine_begins_the_grace_again() -> None:
    history = trained(4.0, 3.0, 2.0)
    history.decide_checkpoint(Kind.CHECKPOINT_SUPERSEDED, ref(history, 0))
    history.at += timedelta(days=9)
    history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, ref(history, 0))
    judged = judge(history.state, history.at + timedelta(seconds=30))[0]
    assert judged.fate is Fate.KEEP
    assert any("grace until" in why for why in judged.why)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"keep_last": 0}, "keep_last is 0"),
        ({"keep_best": -1}, "keep_best is -1"),
        ({"metric": " "}, "has no name"),
        ({"metric": "m" * 65}, "a name of 65 characters"),
        ({"direction": "up"}, "direction is 'up'"),
        ({"milestone_every_steps": 0}, "milestone every 0 steps"),
        ({"delete_after_s": -1.0}, "delete_after_s is -1.0"),
        ({"delete_after_s": float("nan")}, "delete_after_s is nan"),
    ],
)
def test_a_rule_that_cannot_be_kept_to_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        check_rule(replace(RetentionRule(), **changes))
    assert check_rule(RULE) is RULE


def test_a_checkpoint_is_named_by_run_and_step() -> None:
    assert parse_at("my-run@40") == ("my-run", 40)
    assert parse_at("12.52a@40") == ("12.52a", 40)
    for text in ("../x@4", "x.@4", "my-run", "my-run@", "@40", "my-run@-1", "My@4", "a/a01@4"):
        with pytest.raises(InvalidInput, match="write RUN@STEP"):
            parse_at(text)


def test_a_step_is_the_newest_attempts_unless_it_is_said() -> None:
    history = trained(4.0, 3.0).end("preempted")
    history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, ref(history, 1))
    history.open().place().restore().commit(20)
    assert find_at(history.state, 20).ref.attempt_id == 2
    assert find_at(history.state, 10, attempt_id=1).ref.attempt_id == 1
    with pytest.raises(UnknownRun, match=r"it has: 10 \(attempt 1\), 20 \(attempt 2\)"):
        find_at(history.state, 30)
    with pytest.raises(UnknownRun, match="step 20 by attempt 1"):
        find_at(history.state, 20, attempt_id=1)
