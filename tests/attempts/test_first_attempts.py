"""A first attempt that cannot be opened is reported once, and a stop comes before it."""

from __future__ import annotations

import pytest

from tests.bodies import TRAIN
from tests.deciders import ticked
from tests.fakes import FakeClock, FakeObjectStore
from tests.histories import DatasetHistory, History
from tracks_dagster.holds.effects.quarantines import release_snapshot
from tracks_dagster.holds.effects.stops import request_stop
from tracks_dagster.ledger.effects.deciding import Settled
from tracks_dagster.ledger.effects.ticks import Tick
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.track import names
from tracks_dagster.track.records import Kind
from tracks_dagster.track.states.lifecycle import run_status


@pytest.fixture
def held(store: FakeObjectStore, tracks: Tracks, clock: FakeClock) -> History:
    """A run that was declared, and whose snapshot was quarantined before its first attempt."""
    dataset = DatasetHistory(TRAIN.dataset).declare().commit(TRAIN.snapshot_id)
    dataset.decide(Kind.SNAPSHOT_QUARANTINED, TRAIN.snapshot_id).write_to(store)
    history = History().declare()
    history.write_to(store)
    clock.at = history.at
    tracks.project("runs/r-1")
    return history


def tick(tracks: Tracks, ledger: Ledger) -> Tick[Settled]:
    return ticked(tracks, ledger, sensor=names.WATCH_ATTEMPTS)


def test_a_withdrawn_snapshot_is_one_alert_and_no_failing_tick(
    held: History, tracks: Tracks, ledger: Ledger
) -> None:
    first, *others = [tick(tracks, ledger) for _ in range(3)]
    assert not first.problems
    assert "r-1: paused: The first attempt of r-1 cannot be opened: snapshot" in first.decided[0]
    assert all(not each.problems and not each.decided for each in others)
    assert "is in quarantine" in others[0].waiting[0]
    [alert] = tracks.run("r-1").alerts
    assert alert.body.rule == names.ALERT_FIRST_ATTEMPT_HELD
    assert "tracks release snapshot:" in alert.body.text
    assert "tracks stop r-1" in alert.body.text
    assert run_status(tracks.run("r-1")).why == alert.body.text


def test_a_stop_is_obeyed_all_the_same(held: History, tracks: Tracks, ledger: Ledger) -> None:
    tick(tracks, ledger)
    request_stop(tracks, "r-1", mode="stop", by="ann", why="enough")
    assert "ann asked to stop (enough)" in run_status(tracks.run("r-1")).why
    assert tick(tracks, ledger).decided[0].startswith("r-1: finished: ann stopped the run")
    state = tracks.run("r-1")
    assert (state.finished.stop_cause if state.finished else None, state.attempts) == ("user", ())


def test_a_release_lets_the_attempt_be_opened(
    held: History, tracks: Tracks, ledger: Ledger
) -> None:
    tick(tracks, ledger)
    release_snapshot(tracks, TRAIN, by="ann", why="the rows are right")
    assert tick(tracks, ledger).decided == ("r-1: opened: its first attempt",)


def test_a_run_that_is_stopped_before_its_first_attempt_never_gets_one(
    store: FakeObjectStore, tracks: Tracks, ledger: Ledger
) -> None:
    History().declare().stop().write_to(store)
    tracks.project("runs/r-1")
    assert tick(tracks, ledger).decided[0].startswith("r-1: finished: ")
    assert tracks.run("r-1").attempts == ()
