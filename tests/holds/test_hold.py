"""A hold says what, why, by whom, by which record and until when, whatever act it is the effect of."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.bodies import BEGIN
from tests.histories import History
from tests.hold_values import in_quarantine
from tests.pools import HOUR_S, POOL, PoolHistory
from tracks_dagster.holds.hold import (
    Hold,
    HoldAct,
    find_hold,
    key_of_checkpoint,
    key_of_node,
    key_of_run,
    loss,
    loss_for_branch,
    loss_of_source,
    nodes_in_quarantine,
    oldest,
    stop_of,
)
from tracks_dagster.track.records import Kind


def saved() -> History:
    """One checkpoint, of step 10."""
    return History().declare().open().place().restore().commit(10)


def test_a_stop_holds_its_run_and_a_drain_holds_nothing() -> None:
    assert stop_of(saved().stop("drain").state) is None
    history = saved().stop("stop")
    hold = stop_of(history.state)
    assert hold is not None
    assert (hold.what, hold.act, hold.until) == (key_of_run("r-1"), HoldAct.STOP, None)
    assert (hold.track, hold.seq) == ("runs/r-1", history.state.stops[0].seq)
    assert (hold.by, hold.why) == (history.state.stops[0].body.by, history.state.stops[0].body.why)


@pytest.mark.parametrize(
    ("kind", "is_lost", "words"),
    [
        (None, False, ""),
        (Kind.CHECKPOINT_SUPERSEDED, False, ""),
        (Kind.CHECKPOINT_QUARANTINED, True, "r-1@10 (attempt 1) was quarantined and cannot be"),
        (Kind.CHECKPOINT_DELETED, True, "r-1@10 (attempt 1) was deleted and cannot be branched"),
    ],
)
def test_a_checkpoint_is_lost_to_others_once_its_own_run_gave_it_up(
    kind: Kind | None, is_lost: bool, words: str
) -> None:
    history = saved()
    ref = history.state.checkpoints[0].ref
    if kind is not None:
        history.decide_checkpoint(kind, ref)
    hold = loss(history.state, ref)
    assert hold == loss_for_branch(history.state, ref)
    assert (hold is not None) is is_lost
    if hold is not None:
        assert (hold.what, hold.act) == (key_of_checkpoint(ref), HoldAct.LOSS)
        assert (hold.track, hold.seq) == ("runs/r-1", history.state.head.seq)
        assert hold.sentence.startswith(words)


def test_what_a_rollback_only_passed_over_is_not_a_loss_for_a_branch_that_is_there() -> None:
    history = saved()
    ref = history.state.checkpoints[0].ref
    history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, ref, is_passed_over=True)
    assert loss_for_branch(history.state, ref) is None
    assert loss(history.state, ref) is not None


def test_a_checkpoint_that_its_run_does_not_know_is_lost_by_no_record() -> None:
    ref = saved().state.checkpoints[0].ref
    hold = loss(None, ref)
    assert hold is not None
    assert (hold.by, hold.at, hold.seq) == ("", None, None)
    assert "is not in that run's track" in hold.sentence


def test_only_a_branch_can_lose_its_source() -> None:
    source = saved().state.checkpoints[0].ref
    holds = [hold for hold in (loss(None, source),) if hold is not None]
    branch = History("b-1").declare(branched_from=source)
    assert loss_of_source(branch.state, holds) == holds[0]
    assert loss_of_source(branch.state, []) is None
    assert loss_of_source(saved().state, holds) is None


def test_a_node_is_held_by_its_pool_until_its_quarantine_ends() -> None:
    pool = PoolHistory().quarantine("n-1", for_s=HOUR_S).quarantine("n-2", for_s=2 * HOUR_S)
    newest, before = nodes_in_quarantine(pool.state, pool.at)
    assert [newest.name, before.name] == ["n-2", "n-1"]
    assert (before.what, before.act) == (key_of_node("n-1"), HoldAct.QUARANTINE)
    assert (before.track, before.seq, before.why) == (pool.name, 0, "it smells")
    assert before.until is not None
    assert POOL not in before.what
    assert nodes_in_quarantine(pool.state, before.until) == (newest,)


def test_what_descends_names_the_source_and_a_source_names_itself() -> None:
    history = saved()
    descends = in_quarantine(history.state.checkpoints[0].ref)
    assert descends.sentence == (
        "r-1@10 (attempt 1) descends from node:n-1, which ann put in quarantine (it flips bits; "
        'record 3 of lineage/quarantines). `tracks release node:n-1 --why "…"` releases it.'
    )
    through = replace(descends, through="attempt r-1/a01, which ran on it")
    assert (
        "lineage/quarantines), through attempt r-1/a01, which ran on it. `tracks" in through.words
    )
    snapshot = in_quarantine(history.state.declared.snapshot)
    assert snapshot.sentence == (
        f"{snapshot.source} is in quarantine: it flips bits (ann, record 3 of lineage/quarantines). "
        f'`tracks release {snapshot.source} --why "…"` releases it.'
    )


def test_a_sentence_has_room_for_its_record() -> None:
    hold = replace(in_quarantine("r-1"), why="x" * 5000)
    assert len(hold.sentence) < 600


def test_the_oldest_record_is_reported_first_and_what_has_none_last() -> None:
    first, second = in_quarantine("r-1"), replace(in_quarantine("r-2"), seq=4)
    later = replace(first, at=BEGIN + timedelta(seconds=1), seq=1)
    unknown = replace(first, at=None, seq=None)
    assert oldest([unknown, later, second, first]) == first
    assert oldest([unknown, later]) == later
    assert oldest([]) is None


def test_a_hold_is_found_by_its_act_and_what_it_holds() -> None:
    holds: list[Hold] = [in_quarantine("r-1"), in_quarantine("r-2")]
    assert find_hold(holds, HoldAct.QUARANTINE, key_of_run("r-2")) == holds[1]
    assert find_hold(holds, HoldAct.STOP, key_of_run("r-2")) is None
    assert find_hold(holds, HoldAct.QUARANTINE, key_of_run("r-3")) is None
