"""Two daemons decide on one node: each attempt strikes once, and a node is quarantined once."""

from __future__ import annotations

from datetime import datetime
from uuid import uuid4

import pytest

from tests.fakes import FakeClock, FakeObjectStore
from tests.pools import POOL, clustered, settled
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.retry.effects import node_health
from tracks_dagster.retry.effects.node_health import PoolWork, read_work
from tracks_dagster.track.names import pool_track
from tracks_dagster.track.records import Kind


def strikes(tracks: Tracks) -> list[Kind]:
    return [record.kind for record in tracks.records(pool_track(POOL))]


@pytest.fixture
def another(store: FakeObjectStore, ledger: Ledger, clock: FakeClock) -> Tracks:
    """What another daemon of the same store sees."""
    project = Projector(store, ledger).project
    return Tracks(store, now=clock, new_uid=lambda: uuid4().hex, project=project)


@pytest.fixture
def lost(store: FakeObjectStore, ledger: Ledger, clock: FakeClock) -> None:
    """Two runs that lost n-2, in a pool of ten others."""
    histories = [clustered(f"ok-{n}", nodes=f"m-{n}").end("completed") for n in range(10)]
    for run_id in ("r-1", "r-2"):
        histories.append(clustered(run_id).end("node_failure", last_step=23, blamed_node="n-2"))
    for history in histories:
        history.write_to(store)
        clock.at = max(clock.at, history.at)
    Projector(store, ledger).scan()
    clock.advance(60)


def test_a_strike_between_another_daemons_look_and_its_own_is_the_only_one(
    lost: None,
    tracks: Tracks,
    another: Tracks,
    ledger: Ledger,
    store: FakeObjectStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert settled(tracks, ledger, "r-1").what == "opened"
    said: list[str] = []

    def meanwhile(ledger: Ledger, pool: str, *, now: datetime, window_s: float) -> PoolWork:
        if not said:
            said.append("…")  # once, and not from within
            said.append(settled(another, ledger, "r-2").what)
        return read_work(ledger, pool, now=now, window_s=window_s)

    monkeypatch.setattr(node_health, "read_work", meanwhile)
    assert settled(tracks, ledger, "r-2").what == "waiting"  # what is to be done was done meanwhile
    assert said == ["…", "opened"]
    assert strikes(tracks) == [Kind.NODE_STRUCK, Kind.NODE_STRUCK, Kind.NODE_QUARANTINED]
    assert len(tracks.run("r-2").attempts) == 2
    before = ledger.dump()
    Projector(store, ledger).reindex()
    assert ledger.dump() == before


def test_the_time_of_the_attempt_that_strikes_counts_though_the_ledger_lagged(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore, clock: FakeClock
) -> None:
    history = clustered()
    history.write_to(store)
    Projector(store, ledger).scan()
    history.at = clock.at = clock.at.replace(year=clock.at.year + 1)
    history.end("node_failure", last_step=23, blamed_node="n-2").write_to(store)
    settled(tracks, ledger, "r-1")
    state = tracks.find_pool(POOL)
    assert state is not None
    [strike] = next(node for node in state.nodes if node.node == "n-2").strikes
    assert strike.body.exposure_s == DEFAULT_POLICY.nodes.window_s
