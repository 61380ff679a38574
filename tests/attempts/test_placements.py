"""All places of a large gang come from the object that its record names."""

from __future__ import annotations

import pytest

from tests.bodies import placed
from tests.fakes import FakeObjectStore
from tracks_dagster.attempts.effects.evidence import read_places
from tracks_dagster.track.bodies import RankPlace
from tracks_dagster.track.placement import compacted, places_key

PLACES = tuple(
    RankPlace(
        rank=rank,
        node=f"node-{rank}",
        pid=1,
        pid_started=1.0,
        boot_id=f"boot-{rank}",
        device="cpu",
        accelerator="cpu",
    )
    for rank in range(200)
)


def test_a_large_gang_s_places_are_read_from_their_object() -> None:
    store = FakeObjectStore()
    body, data = compacted(placed("launch", world_size=200, ranks=PLACES))
    assert data is not None
    store.put(places_key("r", 1, "launch", str(body.places_sha256)), data)
    assert read_places(store, "r", 1, body) == PLACES


@pytest.mark.parametrize("found", [None, b"[]", b"{"])
def test_places_that_are_lost_or_broken_leave_what_the_record_holds(found: bytes | None) -> None:
    store = FakeObjectStore()
    body, _ = compacted(placed("launch", world_size=200, ranks=PLACES))
    if found is not None:
        store.put(places_key("r", 1, "launch", str(body.places_sha256)), found)
    assert read_places(store, "r", 1, body) == PLACES[:1]


def test_a_small_gang_s_places_stand_in_its_record_and_an_unplaced_one_has_none() -> None:
    small = placed("launch", world_size=2, ranks=PLACES[:2])
    assert read_places(FakeObjectStore(), "r", 1, small) == PLACES[:2]
    assert read_places(FakeObjectStore(), "r", 1, None) == ()
