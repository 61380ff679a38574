"""A checkpoint that decides over a retry is read by somebody, or somebody gets an alert."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.attempts.test_retry import CONFIG, settled, spent_and_progressed
from tests.fakes import FakeClock, FakeObjectStore
from tests.histories import History
from tracks_dagster.checkpoints.effects.collection import read_what_decides
from tracks_dagster.checkpoints.effects.verification import READ_BYTES_MAX, UNREAD_S_MAX
from tracks_dagster.ledger.effects.ticks import Tick
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.track.bodies import Alert
from tracks_dagster.track.errors import CheckpointMismatch, StoreUnavailable, TracksError
from tracks_dagster.track.names import ALERT_CHECKPOINT_UNREAD
from tracks_dagster.track.states.checkpoints import CheckpointRef

LARGE = READ_BYTES_MAX + 1


class Reader:
    """A checkpoint reader that fails as long as a test wants it."""

    def __init__(self, failure: TracksError | None = None) -> None:
        self.failure = failure
        self.read: list[int] = []

    def verify(self, ref: CheckpointRef) -> int:
        self.read.append(ref.step)
        if self.failure is not None:
            raise self.failure
        return 1000

    def chunk_sizes(self, ref: CheckpointRef) -> dict[str, int]:
        return {}


def alerts(tracks: Tracks) -> list[Alert]:
    rule = ALERT_CHECKPOINT_UNREAD
    return [alert.body for alert in tracks.run("r-1").alerts if alert.body.rule == rule]


def test_a_large_one_is_read_by_the_collector_of_any_size_and_the_retry_goes_on(
    store: FakeObjectStore, clock: FakeClock, tracks: Tracks, ledger: Ledger
) -> None:
    spent_and_progressed(store, clock, total_bytes=10**13)
    tracks.project("runs/r-1")
    reader = Reader()
    waits = settled(tracks, checkpoints=reader)
    assert (waits.what, reader.read) == ("waiting", [])
    assert "the job collect_checkpoints reads it first of all" in waits.why
    assert "tracks checkpoints verify r-1 --step 30" in waits.why
    until = clock() + timedelta(seconds=1)
    done = read_what_decides(tracks, ledger, reader, DEFAULT_POLICY, by="tests", until=until)
    assert ([each.status for each in done.done], done.problems) == (["verified"], ())
    assert settled(tracks, checkpoints=reader).what == "opened"


def test_the_collector_begins_none_when_its_time_is_over_and_tells_what_failed(
    store: FakeObjectStore, clock: FakeClock, tracks: Tracks, ledger: Ledger
) -> None:
    spent_and_progressed(store, clock, total_bytes=LARGE)
    tracks.project("runs/r-1")
    reader = Reader(StoreUnavailable("the store sleeps"))
    over = read_what_decides(tracks, ledger, reader, DEFAULT_POLICY, by="c", until=clock())
    assert (over, reader.read) == (Tick(), [])
    until = clock() + timedelta(seconds=1)
    done = read_what_decides(tracks, ledger, reader, DEFAULT_POLICY, by="c", until=until)
    assert done == Tick(problems=("r-1: the store sleeps",))


def test_a_large_one_of_another_format_is_refused_by_the_collector(
    store: FakeObjectStore, clock: FakeClock, tracks: Tracks, ledger: Ledger
) -> None:
    spent_and_progressed(store, clock, total_bytes=LARGE)
    tracks.project("runs/r-1")
    reader, until = Reader(CheckpointMismatch("its format is 9")), clock() + timedelta(seconds=1)
    for _ in range(2):
        read_what_decides(tracks, ledger, reader, DEFAULT_POLICY, by="c", until=until)
    [refusal] = tracks.run("r-1").refusals
    assert (refusal.body.limit, refusal.body.decided_by) == ("checkpoint", "c")
    assert reader.read == [30]


@pytest.mark.parametrize("total_bytes", [1000, LARGE])
def test_one_that_nobody_reads_for_an_hour_is_one_alert(
    store: FakeObjectStore, clock: FakeClock, tracks: Tracks, total_bytes: int
) -> None:
    history = spent_and_progressed(store, clock, total_bytes=total_bytes)
    reader = Reader(StoreUnavailable("the store sleeps"))
    assert settled(tracks, checkpoints=reader).what == "waiting"
    clock.at = history.at + timedelta(seconds=UNREAD_S_MAX)
    whats = [settled(tracks, checkpoints=reader).what for _ in range(3)]
    assert whats == ["paused", "waiting", "waiting"]
    [alert] = alerts(tracks)
    assert alert.text.startswith("Nobody has read a checkpoint that a retry waits for")


def test_one_that_could_not_be_read_for_a_while_is_read_when_the_store_is_back(
    store: FakeObjectStore, clock: FakeClock, tracks: Tracks
) -> None:
    spent_and_progressed(store, clock)
    reader = Reader(StoreUnavailable("the store sleeps"))
    waits = settled(tracks, checkpoints=reader)
    assert waits.what == "waiting"
    assert "could not be read, which is tried again: the store sleeps" in waits.why
    reader.failure = None
    assert settled(tracks, checkpoints=reader).what == "opened"


def test_one_of_a_format_that_this_version_cannot_read_ends_in_a_refusal_and_stays_as_it_is(
    store: FakeObjectStore, clock: FakeClock, tracks: Tracks
) -> None:
    spent_and_progressed(store, clock)
    reader = Reader(CheckpointMismatch("its format 9 is newer than 1"))
    refused = settled(tracks, checkpoints=reader)
    assert refused.what == "refused"
    assert "This version cannot read them: its format 9 is newer than 1" in refused.why
    [refusal] = tracks.run("r-1").refusals
    assert refusal.body.limit == "checkpoint"
    assert "Update this checkout" in refusal.body.what_to_do
    assert not tracks.run("r-1").checkpoints[0].quarantined
    assert settled(tracks, checkpoints=reader).what == "waiting"


def test_a_full_disk_has_no_tick_read_a_large_checkpoint(
    store: FakeObjectStore, clock: FakeClock, tracks: Tracks
) -> None:
    history = History().declare(config=CONFIG).open().place().restore()
    for step in (10, 20, 30, 40, 50):
        history.commit(step, total_bytes=10**13)
    history.end("disk_full", last_step=52).write_to(store)
    clock.at = history.at
    clock.advance(60)
    reader = Reader()
    result = settled(tracks, checkpoints=reader)
    assert (result.what, reader.read) == ("opened", [])
    assert "Before it 0 superseded checkpoints" in result.why
