"""A thing by its name, as of a time: an alias and an eval mean the newest of then, not of today."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.fakes import FakeClock, FakeObjectStore
from tests.histories import History
from tests.holds.test_source_quarantines import hold
from tracks_dagster.holds.effects.blast import ancestors_lines
from tracks_dagster.holds.effects.descent import ancestors, descendants
from tracks_dagster.holds.effects.holds import quarantined_sources
from tracks_dagster.holds.effects.things import as_it_was, find_exact
from tracks_dagster.holds.hold import ThingKind
from tracks_dagster.holds.lineage import parse_thing
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.track.states.run_state import RunState

ALIAS = "promotion:r-1/best"
EVAL = "eval:r-1/heldout-loss@40"


@pytest.fixture
def state(store: FakeObjectStore, ledger: Ledger, clock: FakeClock) -> RunState:
    """Step 20 was promoted, then step 40 of attempt 1; a rollback to 20, and 40 again by attempt 2."""
    history = History("r-1").declare().open().place().restore().commit(20)
    first = history.state.checkpoints[0].ref
    history.open_eval(first).end_eval(history.state.evals[-1].opened)
    history.promote(history.state.evals[-1].opened).commit(40)
    history.open_eval(history.state.checkpoints[-1].ref)
    history.end_eval(history.state.evals[-1].opened).end("loss_divergence", last_step=41)
    history.open(resume=first).place().restore().commit(40)
    history.open_eval(history.state.checkpoints[-1].ref)
    history.end_eval(history.state.evals[-1].opened).promote(history.state.evals[-1].opened)
    history.write_to(store)
    Projector(store, ledger).scan()
    clock.at = history.at
    clock.advance(60)
    return history.state


def test_as_of_its_first_promotion_an_alias_rests_on_what_it_named_then(
    state: RunState, tracks: Tracks, ledger: Ledger
) -> None:
    thing = find_exact(tracks, ledger, parse_thing(ALIAS))
    first, second = state.promotions
    [nearest] = ancestors(ledger, thing, as_of=first.at).chain
    assert (nearest.attempt, nearest.up_to_step) == ("attempt:r-1/a01", 20)
    chain = ancestors(ledger, thing, as_of=second.at).chain
    assert [(each.attempt, each.up_to_step) for each in chain] == [
        ("attempt:r-1/a02", 40),
        ("attempt:r-1/a01", 20),
    ]


def test_as_of_a_time_before_a_rollback_an_eval_is_of_the_checkpoint_of_then(
    state: RunState, tracks: Tracks, ledger: Ledger
) -> None:
    thing = find_exact(tracks, ledger, parse_thing(EVAL))
    first = next(e for e in state.evals if e.opened.eval_id == thing.eval_id)
    found = ancestors(ledger, thing, as_of=first.opened_at).chain
    assert [each.attempt for each in found] == ["attempt:r-1/a01"]
    result = descendants(ledger, thing, as_of=first.opened_at)
    assert result.promotions.count == 0
    was = as_it_was(thing, first.opened_at)
    assert was is not None
    assert (was.eval_number, was.checkpoint) == (1, first.opened.checkpoint)
    assert thing.eval_number == 2


def test_just_before_its_record_a_thing_is_not_there_and_rests_on_nothing(
    state: RunState, tracks: Tracks, ledger: Ledger
) -> None:
    recorded = {  # all that it rests on was recorded before
        ALIAS: state.promotions[0].at,
        EVAL: state.evals[1].opened_at,
        "checkpoint:r-1/a02@40": state.checkpoints[2].at,
        "attempt:r-1/a02": state.attempts[1].opened_at,
    }
    for name, at in recorded.items():
        thing = find_exact(tracks, ledger, parse_thing(name))
        before = at - timedelta(microseconds=1)
        assert thing.kind is ThingKind.ATTEMPT or as_it_was(thing, before) is None
        found = ancestors(ledger, thing, as_of=before)
        assert (found.chain, "not there yet" in str(found.missing)) == ((), True), name
        assert descendants(ledger, thing, as_of=before).evals.count == 0
        assert ancestors(ledger, thing, as_of=at).chain, name


def test_as_of_a_time_an_alias_is_marked_by_what_it_named_then(
    tracks: Tracks, store: FakeObjectStore, ledger: Ledger, clock: FakeClock
) -> None:
    history = History("r-1").declare().open().place().restore().commit(20)
    history.open_eval(history.state.checkpoints[-1].ref).end_eval(history.state.evals[-1].opened)
    history.promote(history.state.evals[-1].opened).end("loss_divergence", last_step=41)
    history.write_to(store)
    Projector(store, ledger).scan()
    clock.at = history.at
    hold(tracks, ledger, "checkpoint:r-1@20")
    between = clock.at
    history.open(resume=None).place().restore().commit(40)
    history.open_eval(history.state.checkpoints[-1].ref).end_eval(history.state.evals[-1].opened)
    history.promote(history.state.evals[-1].opened).write_to(store)
    thing = parse_thing(ALIAS)
    marked = quarantined_sources(tracks, ledger, thing, as_of=between)
    assert [mark.source for mark in marked] == ["checkpoint:r-1/a01@20"]
    assert quarantined_sources(tracks, ledger, thing) == ()


def test_a_run_without_a_snapshot_rests_on_its_attempts_all_the_same(
    store: FakeObjectStore, tracks: Tracks, ledger: Ledger
) -> None:
    history = History("r-2").declare(snapshot=None).open().place().restore().commit(20)
    history.end("gpu_oom", last_step=23).open().place().restore().commit(40).write_to(store)
    Projector(store, ledger).scan()
    found = ancestors(ledger, find_exact(tracks, ledger, parse_thing("checkpoint:r-2@40")))
    assert [(each.attempt, each.snapshot) for each in found.chain] == [
        ("attempt:r-2/a02", None),
        ("attempt:r-2/a01", None),
    ]
    assert found.missing is None
    assert "of no snapshot" in next(ancestors_lines(found))
