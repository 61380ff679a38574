"""Reads where all ranks of an attempt's gang ran, from its record or from the object that it names."""

from __future__ import annotations

from tracks_dagster.track.bodies import AttemptPlaced, RankPlace
from tracks_dagster.track.errors import TrackBroken
from tracks_dagster.track.placement import decode_places, places_key
from tracks_dagster.track.ports import ObjectStore


def read_places(
    store: ObjectStore, run_id: str, attempt_id: int, placed: AttemptPlaced | None
) -> tuple[RankPlace, ...]:
    """Return the place of each rank; what the record holds where the object is lost."""
    if placed is None:
        return ()
    sha256 = placed.places_sha256
    if sha256 is None:
        return placed.ranks
    data = store.get(places_key(run_id, attempt_id, placed.launch_id, sha256))
    try:
        return placed.ranks if data is None else decode_places(data, sha256)
    except TrackBroken:
        return placed.ranks
