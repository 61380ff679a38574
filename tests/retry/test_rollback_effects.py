"""A rollback: its quarantines first, then the attempt; a crash between any two records is harmless."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.deciders import retried, settled_run
from tests.fakes import FakeClock, FakeObjectStore, SequentialUids
from tests.histories import History
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.review.effects.explain.run import explain_attempt
from tracks_dagster.review.explain.text import attempt_text
from tracks_dagster.track.names import WATCH_ATTEMPTS, run_track
from tracks_dagster.track.records import Draft, Json, Kind

CONFIG = {"steps": 400, "seed": 7, "micro_batch": 4, "accumulation": 6, "lr": 0.08}


class Killed(BaseException):
    """The process is gone."""


class DyingStore(FakeObjectStore):
    """Kills the process at its `dies_at`-th creation, before or after it took effect; 0: never."""

    def __init__(self, *, dies_at: int = 0, after: bool = False) -> None:
        super().__init__()
        self.dies_at, self.after, self.created = dies_at, after, 0

    def create(self, key: str, data: bytes | memoryview) -> bool:
        self.created += 1
        if self.created == self.dies_at and not self.after:
            raise Killed
        done = super().create(key, data)
        if self.created == self.dies_at:
            raise Killed
        return done


def diverged() -> History:
    """A run whose loss went away at step 35, which was noticed at 64, with checkpoints beyond."""
    history = History().declare(config=CONFIG, estimated_device_s=1e9).open().place().restore()
    for step in (10, 20, 30, 40, 50, 60):
        history.commit(step)
    return history.end("loss_divergence", last_step=64, onset_step=35, fingerprint="f")


def tracks_on(store: FakeObjectStore, clock: FakeClock) -> Tracks:
    return Tracks(store, now=clock, new_uid=SequentialUids(), project=lambda name: None)


def appended(store: FakeObjectStore, clock: FakeClock) -> list[tuple[str, Mapping[str, Json]]]:
    """What was appended since: (kind, body)."""
    records = tracks_on(store, clock).records(run_track("r-1"))
    written = len(diverged().records)
    return [(record.kind.value, record.body) for record in records[written:]]


def settled(store: FakeObjectStore, clock: FakeClock) -> str:
    tracks = tracks_on(store, clock)
    return settled_run(
        tracks, "r-1", reasons=None, decided_by=WATCH_ATTEMPTS, policy=DEFAULT_POLICY
    ).what


def stored(clock: FakeClock, **dying: Any) -> DyingStore:
    store = DyingStore(**dying)
    history = diverged()
    dies_at, store.dies_at = store.dies_at, 0
    history.write_to(store)
    store.created, store.dies_at = 0, dies_at
    clock.at = history.at
    return store


def test_the_quarantines_come_first_newest_first_and_then_the_attempt(clock: FakeClock) -> None:
    store = stored(clock)
    assert settled(store, clock) == "opened"
    kinds = [kind for kind, _ in appended(store, clock)]
    assert kinds == ["checkpoint_quarantined"] * 3 + ["attempt_opened"]
    state = tracks_on(store, clock).run("r-1")
    assert [c.ref.step for c in state.checkpoints if c.quarantined] == [40, 50, 60]
    opened = state.attempts[-1].opened
    assert opened.resume == state.resumes_from
    assert opened.resume is not None
    assert opened.resume.step == 30
    assert {body["by"] for _, body in appended(store, clock)[:3]} == {WATCH_ATTEMPTS}
    assert "numbers went wrong at step 35" in appended(store, clock)[0][1]["why"]
    quarantined = {c.quarantined_seq for c in state.checkpoints if c.quarantined}
    assert quarantined <= set(opened.counted_seqs)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("dies_at", [1, 2, 3, 4])
def test_a_crash_at_any_append_comes_to_the_same_track(
    clock: FakeClock, dies_at: int, after: bool
) -> None:
    calm = stored(clock)
    settled(calm, clock)
    dying = stored(clock, dies_at=dies_at, after=after)
    with pytest.raises(Killed):
        settled(dying, clock)
    settled(dying, clock)
    assert appended(dying, clock) == appended(calm, clock)
    assert settled(dying, clock) == "waiting"


def test_two_sensors_at_once_quarantine_and_open_once(clock: FakeClock) -> None:
    """The other one's record is between each two of ours."""
    calm = stored(clock)
    settled(calm, clock)
    store = stored(clock)

    class Meddling(Tracks):
        """Before each decision the other sensor makes its next record."""

        others = tracks_on(store, clock)

        def decide_run(self, run_id: str, choose: Any) -> Any:
            self.others.decide_run(run_id, choose)
            return super().decide_run(run_id, choose)

    tracks = Meddling(store, now=clock, new_uid=SequentialUids(), project=lambda name: None)
    settled_run(tracks, "r-1", reasons=None, decided_by=WATCH_ATTEMPTS, policy=DEFAULT_POLICY)
    assert appended(store, clock) == appended(calm, clock)


def test_a_persons_retry_does_not_resume_from_after_the_onset(clock: FakeClock) -> None:
    store = stored(clock)
    tracks = tracks_on(store, clock)
    record = retried(tracks, "r-1", by="ann", why="again")
    assert record.kind is Kind.ATTEMPT_OPENED
    assert record.body["resume"]["step"] == 30
    assert [c.ref.step for c in tracks.run("r-1").checkpoints if c.quarantined] == [40, 50, 60]


def test_the_changes_of_a_rollback_stand_in_the_explanation(clock: FakeClock) -> None:
    store = stored(clock)
    settled(store, clock)
    tracks = tracks_on(store, clock)
    history = diverged()
    for record in tracks.records(run_track("r-1"))[len(history.records) :]:
        draft = Draft(
            uid=record.uid, kind=record.kind, body=record.body, attempt_id=record.attempt_id
        )
        history.at = record.at
        history.add_draft(draft)
    history.place().restore().end("nan_loss", last_step=34, onset_step=35, fingerprint="g")
    history.write_to(store)
    clock.at = history.at
    settled(store, clock)
    text = attempt_text(explain_attempt(tracks, "r-1", 3))
    assert "skip_windows: None → [[21, 35]] (the samples up to step 35" in text
    assert "the cause is deterministic" in text
