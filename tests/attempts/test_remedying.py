"""What is done before a decision is recorded: on a full disk, checkpoints are collected first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.deciders import settled_run
from tests.fakes import FakeClock, FakeObjectStore, Fault
from tests.stories import RUN_ID, Story
from tracks_dagster.attempts.effects import retry
from tracks_dagster.checkpoints.effects import retention
from tracks_dagster.ledger.effects.deciding import Settled
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.track.names import WATCH_ATTEMPTS
from tracks_dagster.training.saves.manifest import StoredCheckpoints


@pytest.fixture
def full(store: FakeObjectStore, clock: FakeClock) -> Story:
    """A run with five checkpoints whose disk is full."""
    story = Story(store)
    story.attempt("disk_full", last_step=53, commits=(10, 20, 30, 40, 50))
    story.write_tracks()
    clock.at = story.history.at
    clock.advance(60)
    return story


def settled(tracks: Tracks, ledger: Ledger) -> Settled:
    return settled_run(
        tracks,
        RUN_ID,
        reasons=None,
        decided_by=WATCH_ATTEMPTS,
        policy=DEFAULT_POLICY,
        checkpoints=StoredCheckpoints(tracks.store),
        ledger=ledger,
    )


def test_superseded_checkpoints_go_before_the_retry_is_opened(
    full: Story, tracks: Tracks, ledger: Ledger
) -> None:
    result = settled(tracks, ledger)
    assert result.what == "opened"
    assert "Before it 2 superseded checkpoints (steps 10, 20)" in result.why
    state = tracks.run(RUN_ID)
    assert [c.ref.step for c in state.checkpoints if c.deleted] == [10, 20]
    assert all((c.deleted_seq or 0) < state.attempts[1].opened_seq for c in state.checkpoints)
    opened = state.attempts[1].opened
    assert opened.decision == result.why
    assert opened.resume == state.checkpoints[4].ref


def test_one_checkpoint_that_went_is_reported_in_the_singular(
    full: Story, tracks: Tracks, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = retention.collect

    def of_one(*args: Any, **kwargs: Any) -> Any:
        done = real(*args, **kwargs)
        return replace(done, deleted=done.deleted[:1])

    monkeypatch.setattr(retry, "collect", of_one)
    assert (
        "Before it 1 superseded checkpoint (step 10) and 0 leftovers" in settled(tracks, ledger).why
    )


def test_a_collection_that_fails_does_not_stop_the_retry(
    full: Story, tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    tracks.run(RUN_ID)
    store.fail("delete", 1, Fault.FAILS)
    result = settled(tracks, ledger)
    assert result.what == "opened"
    assert "Collecting checkpoints first failed" in result.why


def test_while_it_waits_nothing_is_collected(
    full: Story, tracks: Tracks, ledger: Ledger, clock: FakeClock
) -> None:
    clock.at = full.history.at
    assert settled(tracks, ledger).what == "waiting"
    assert not any(c.superseded for c in tracks.run(RUN_ID).checkpoints)
