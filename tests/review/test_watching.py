"""The core without the wing that watches: no lights and no alerts, and no run that has to have them."""

from __future__ import annotations

import pytest

from tests.fakes import FakeClock, FakeObjectStore
from tests.histories import History
from tests.policies import policy_of
from tracks_dagster.attempts.idle import IdleDay
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.review.effects import watching as asked
from tracks_dagster.review.effects.metadata import attempt_metadata
from tracks_dagster.review.effects.watching import watching
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.wing import wings


@pytest.fixture(autouse=True)
def no_wing_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    others = {name: each for name, each in wings().items() if not each.watching}
    assert len(others) == len(wings()) - 1
    monkeypatch.setattr(asked, "wings", lambda: others)


def test_an_attempt_is_shown_without_lights(store: FakeObjectStore, tracks: Tracks) -> None:
    history = History("r-1").declare().open().supervise().place().restore().commit(10)
    history.end("preempted", last_step=12).write_to(store)
    shown = attempt_metadata(tracks, "r-1", 1)
    assert shown["ended/termination_reason"] == "preempted"
    assert not [name for name in shown if name.startswith("lights/")]


def test_no_alert_of_a_machine_is_recorded(tracks: Tracks, clock: FakeClock) -> None:
    day = IdleDay(day="2026-01-31", node="node-1")
    assert not watching().watch_machine(tracks, "local/node-1", day, clock()).decided


def test_a_stage_whose_alerts_have_to_reach_somebody_is_refused() -> None:
    contracts = policy_of("monitoring: {notify_stages: [full]}").contracts
    watching().check_notified(contracts, "smoke", "vision", lambda _: None)
    with pytest.raises(InvalidInput, match="alerts of a full run would reach nobody"):
        watching().check_notified(contracts, "full", "vision", lambda _: None)
