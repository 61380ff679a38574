"""A decision whose record would be too large ends in a refusal, not in a tick that fails for ever."""

from __future__ import annotations

import pytest

from tests.deciders import settled_run
from tests.fakes import FakeClock, FakeObjectStore, SequentialUids
from tests.histories import History
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.track.errors import RecordTooLarge
from tracks_dagster.track.records import Kind


def filled_to_the_brim() -> History:
    """A run whose first attempt just fits its record, and which ended."""
    for size in range(16_384, 0, -50):
        config = {"steps": 40, "seed": 7, "words": "x" * size}
        try:
            history = History().declare().open(config=config)
            history.write_to(FakeObjectStore())
        except RecordTooLarge:
            continue
        return history.place().end("preempted", last_step=5)
    pytest.fail("no config is small enough")


def test_it_is_refused_once_and_the_refusal_says_what_is_too_large_and_what_to_do(
    store: FakeObjectStore, clock: FakeClock, new_uid: SequentialUids
) -> None:
    history = filled_to_the_brim()
    history.write_to(store)
    clock.at = history.at
    clock.advance(3600)
    tracks = Tracks(store, now=clock, new_uid=new_uid, project=lambda name: None)
    whats = []
    for _ in range(2):
        settled = settled_run(tracks, "r-1")
        whats.append(settled.what)
    assert whats == ["refused", "waiting"]
    [refusal] = tracks.run("r-1").refusals
    assert (refusal.body.reason, refusal.body.limit) == ("preempted", "record")
    assert "Cannot append attempt_opened: it is 16" in refusal.body.decision
    assert "the limit is 16384" in refusal.body.decision
    assert "The largest part of it is config" in refusal.body.decision
    assert "tracks retry r-1" in refusal.body.what_to_do
    kinds = [record.kind for record in tracks.records("runs/r-1")]
    assert kinds.count(Kind.ATTEMPT_OPENED) == 1
