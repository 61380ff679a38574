"""Many quarantines before one decision cost a call each, and a tick does only what it has time for."""

from __future__ import annotations

from tests.attempts.test_retry import CONFIG, by_ann, settled
from tests.fakes import FakeClock, FakeObjectStore, SequentialUids
from tests.histories import History
from tracks_dagster.attempts.effects.retry import QUARANTINES_MAX
from tracks_dagster.ledger.effects.tracks import Tracks


def diverged(store: FakeObjectStore, clock: FakeClock, *, after: int) -> None:
    """Store a run whose loss diverged before nearly all of its checkpoints were saved."""
    history = History().declare(config=CONFIG, estimated_device_s=1e9).open().place().restore()
    for number in range(after + 1):
        history.commit(10 * (number + 1))
    history.end("loss_divergence", last_step=10 * after + 15, onset_step=15)
    history.write_to(store)
    clock.at = history.at
    clock.advance(600)


def calls_of(clock: FakeClock, *, count: int) -> int:
    """Return the calls of the store that one settling makes, of a process that knows nothing yet."""
    store = FakeObjectStore()
    tracks = Tracks(store, now=clock, new_uid=SequentialUids(), project=lambda name: None)
    diverged(store, clock, after=count)
    store.calls.clear()
    assert settled(tracks).what == "opened"
    assert sum(c.quarantined for c in tracks.run("r-1").checkpoints) == count
    return len(store.calls)


def test_the_calls_of_a_settling_grow_with_the_quarantines_and_no_faster(
    clock: FakeClock,
) -> None:
    few, many = calls_of(clock, count=50), calls_of(clock, count=100)
    # 50 more commits are read, and 50 more quarantines written
    assert many - few <= 2 * 50 + 2


def test_what_is_more_than_a_tick_has_time_for_the_next_one_goes_on_with(
    store: FakeObjectStore, clock: FakeClock, tracks: Tracks
) -> None:
    diverged(store, clock, after=QUARANTINES_MAX + 10)
    first = settled(tracks)
    assert (first.what, "the next tick continues" in first.why) == ("waiting", True)
    second = settled(tracks)
    assert second.what == "opened"
    state = tracks.run("r-1")
    assert [c.ref.step for c in state.checkpoints if not c.quarantined] == [10]
    assert state.attempts[1].opened.resume == state.checkpoints[0].ref


def test_a_persons_retry_quarantines_them_all_before_it_is_opened(
    store: FakeObjectStore, clock: FakeClock, tracks: Tracks
) -> None:
    diverged(store, clock, after=QUARANTINES_MAX + 10)
    opened = by_ann(tracks)
    state = tracks.run("r-1")
    assert [c.ref.step for c in state.checkpoints if not c.quarantined] == [10]
    assert opened.resume == state.checkpoints[0].ref
