"""A promotion that was refused for a quarantine is decided again once after the release."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.aliases import find_holder
from tests.bodies import EVAL_RESULT
from tests.deciders import world_of
from tests.fakes import FakeClock, FakeEvaluator, FakeObjectStore, FakeOrchestrator
from tests.histories import History
from tests.holds.test_source_quarantines import free, hold, on, settled
from tracks_dagster.evals.effects.running import run_eval
from tracks_dagster.evals.effects.tick import tick_evals
from tracks_dagster.ledger.effects.database import open_ledger
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.retry.effects import due
from tracks_dagster.track.records import Json


@pytest.fixture
def refused(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore, clock: FakeClock
) -> FakeOrchestrator:
    """The run is finished; its promotion was refused for a quarantine of attempt 2, on node-2."""
    history = History("r-1").declare().open().place().restore().commit(20)
    history.end("preempted", last_step=20).open().place(ranks=on("node-2")).restore()
    history.commit(40).end("completed", last_step=40).write_to(store)
    Projector(store, ledger).scan()
    clock.at = history.at
    orchestrator = FakeOrchestrator()
    ticked(tracks, ledger, orchestrator)
    run_eval(tracks, FakeEvaluator(store, EVAL_RESULT), "r-1", "heldout-loss@40", 1)
    hold(tracks, ledger, "attempt:r-1/a02")
    (decided,) = ticked(tracks, ledger, orchestrator)
    assert (decided.promoted, decided.is_withheld) == (False, True)
    assert settled(tracks).what == "finished"
    return orchestrator


def ticked(tracks: Tracks, ledger: Ledger, orchestrator: FakeOrchestrator) -> Any:
    tick = tick_evals(world_of(tracks, ledger, orchestrator=orchestrator))
    assert tick.problems == ()
    return [decided for run in tick.done for decided in run.promotions]


def test_a_promotion_refused_for_a_quarantine_is_decided_again_once_after_the_release(
    refused: FakeOrchestrator, tracks: Tracks, ledger: Ledger, clock: FakeClock
) -> None:
    hold(tracks, ledger, "node:node-2")
    free(tracks, ledger, "attempt:r-1/a02")
    assert ticked(tracks, ledger, refused) == []  # the other one still stands against it
    clock.advance(60)
    free(tracks, ledger, "node:node-2")
    (decided,) = ticked(tracks, ledger, refused)
    assert (decided.promoted, decided.is_withheld) == (True, False)
    assert ticked(tracks, ledger, refused) == []
    assert [p.body.promoted for p in tracks.run("r-1").promotions] == [False, True]
    hold(tracks, ledger, "node:node-2")
    free(tracks, ledger, "node:node-2")
    assert ticked(tracks, ledger, refused) == []  # a promotion stands, whatever came later


def test_a_release_takes_no_alias_from_a_checkpoint_that_was_promoted_since(
    refused: FakeOrchestrator,
    tracks: Tracks,
    ledger: Ledger,
    store: FakeObjectStore,
    clock: FakeClock,
) -> None:
    alias = tracks.run("r-1").promotions[0].body.alias
    clock.advance(60)
    later = History("r-2", begin=clock.at).declare().open().place().restore().commit(40)
    later.end("completed", last_step=40).open_eval(later.state.resumable[-1])
    later.end_eval(later.state.evals[-1].opened)
    later.promote(later.state.evals[-1].opened, alias=alias).write_to(store)
    Projector(store, ledger).scan()
    free(tracks, ledger, "attempt:r-1/a02")
    assert ticked(tracks, ledger, refused) == []
    holder = find_holder(ledger, alias)
    assert holder is not None
    assert holder["run_id"] == "r-2"


def run_on_hold(run_id: str, begin: datetime, store: FakeObjectStore) -> None:
    """A finished run on node-2, whose one checkpoint was evaluated."""
    history = History(run_id, begin=begin).declare().open().place(ranks=on("node-2")).restore()
    history.commit(40).end("completed", last_step=40).write_to(store)


def test_of_two_that_want_one_alias_the_newer_has_it_after_the_release(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore, clock: FakeClock
) -> None:
    orchestrator, run_ids = FakeOrchestrator(), ("z-older", "a-newer")
    for run_id in run_ids:
        run_on_hold(run_id, clock.at, store)
    Projector(store, ledger).scan()
    clock.advance(3600)
    ticked(tracks, ledger, orchestrator)
    hold(tracks, ledger, "node:node-2")
    for run_id in run_ids:
        run_eval(tracks, FakeEvaluator(store, EVAL_RESULT), run_id, "heldout-loss@40", 1)
        assert [each.is_withheld for each in ticked(tracks, ledger, orchestrator)] == [True]
        assert settled(tracks, run_id).what == "finished"
        clock.advance(60)
    free(tracks, ledger, "node:node-2")
    decided = ticked(tracks, ledger, orchestrator)
    assert [each.checkpoint.run_id for each in decided] == ["z-older", "a-newer"]
    assert all(each.promoted for each in decided)


def test_runs_that_wait_for_a_release_take_turns(
    refused: FakeOrchestrator, ledger: Ledger, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = [f"r-{index}" for index in range(5)]
    monkeypatch.setattr(due, "WITHHELD_MAX", 2)
    asked = [{"run_id": run_id} for run_id in named]
    monkeypatch.setattr(ledger, "query", lambda sql, values: asked)
    seen: list[str] = []
    for _ in range(3):
        turn = due.runs_with_promotion_on_hold(ledger, clock.at)
        assert len(turn) <= 2
        seen += turn
        clock.advance(due.WITHHELD_TURN_S)
    assert sorted(seen) == named


def test_asking_who_waits_for_a_release_reads_no_other_promotion(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    asked: list[tuple[str, dict[str, Json]]] = []
    with monkeypatch.context() as patched:
        patched.setattr(ledger, "query", lambda sql, values: asked.append((sql, values)) or [])
        due.runs_with_promotion_on_hold(ledger, clock.at)
    [(sql, values)] = asked
    plan = [row["detail"] for row in ledger.query(f"explain query plan {sql}", values)]
    assert plan[0] == "SCAN p USING INDEX ix_promotions_withheld"
    assert not [step for step in plan[1:] if step.startswith("SCAN")]
