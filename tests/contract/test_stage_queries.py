"""What gates ask of the ledger, on every kind of it: runs without a verdict, runs, certificates."""

from __future__ import annotations

from datetime import date

import pytest

from tests.attempts.test_stage_gates import House
from tests.deciders import world_of
from tests.fakes import FakeClock, FakeObjectStore, SequentialUids
from tests.stories import Story
from tracks_dagster.attempts.effects.caps import Caps
from tracks_dagster.attempts.effects.stage_verdicts import unjudged
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.ledger.prices import Prices
from tracks_dagster.projects.effects.certificates import certificates
from tracks_dagster.review.daily import MatterKind
from tracks_dagster.review.effects.daily import review_day
from tracks_dagster.track.records import sha256_hex


@pytest.fixture
def house(ledger: Ledger) -> House:
    """The house of the gates' own tests, on this ledger."""
    store, clock = FakeObjectStore(), FakeClock()
    for dataset in Story(store).datasets:
        dataset.write_to(store)
    project = Projector(store, ledger).project
    return House(Tracks(store, now=clock, new_uid=SequentialUids(), project=project), ledger, clock)


def test_the_gates_are_asked_alike_of_every_ledger(house: House) -> None:
    ledger = house.ledger
    house.ready()
    house.rehearse("kitchen_sink")
    assert unjudged(ledger) == unjudged(ledger, "gpt") == ["canary-1", "kitchen-sink-2"]
    assert unjudged(ledger, "tabular") == []
    declared = house.declare(skip_gates=("conform",), skip_why="A demo.")
    assert set(declared.passed_gates) == {"tests", "smoke", "canary"}
    assert unjudged(ledger) == []
    [certificate] = certificates(ledger, sha256_hex(b"a tar"))
    assert certificate["is_green"] is True
    day = review_day(ledger, date(2026, 1, 31), now=house.clock())
    assert day.matter_count_of(MatterKind.GATE) == 1


@pytest.mark.parametrize("prices", [None, Prices(currency="USD", per_device_hour={}, source="p")])
def test_a_run_with_a_limit_of_time_is_watched_with_and_without_prices(
    prices: Prices | None, house: House
) -> None:
    house.declare(run_id="s-1", stage="smoke")
    house.declare(run_id="c-1", stage="kitchen_sink", max_cost=2.0)
    world = world_of(house.tracks, house.ledger, prices=prices)
    assert list(Caps().due(world)) == (["s-1"] if prices is None else ["c-1", "s-1"])
