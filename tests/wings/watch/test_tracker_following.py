"""The follower of trackers: what is due is sent, nothing else is opened, nobody waits for long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from tests.fakes import FakeClock, FakeObjectStore
from tests.stories import Story
from tracks_dagster.ledger.effects.following import StoredCursors
from tracks_dagster.ledger.effects.ticks import Tick
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.track.errors import TrackerError
from tracks_dagster.track.media import AS_TEXT, TEXT, Logged, index_bytes, index_key, part_key
from tracks_dagster.track.records import sha256_hex
from tracks_dagster.wings.watch.effects.trackers import following
from tracks_dagster.wings.watch.effects.trackers.exporting import Exported, News, progressed
from tracks_dagster.wings.watch.effects.trackers.following import (
    LATE_MAX,
    LOOK_BACK,
    send_what_is_due,
)
from tracks_dagster.wings.watch.effects.trackers.tracker_file import NamedTracker
from tracks_dagster.wings.watch.exports import NOTHING_SENT, ExportedRun, Sent


@dataclass
class FakeTracker:
    """Keeps what it is sent, and may be away. opened: the runs that were asked for, in order."""

    name: str = "a tracker"
    steps: dict[str, list[int]] = field(default_factory=dict)
    logged: list[str] = field(default_factory=list)
    has: dict[str, Sent] = field(default_factory=dict)
    opened: list[str] = field(default_factory=list)
    is_away: bool = False

    @contextmanager
    def open(self, run: ExportedRun) -> Iterator[FakeRun]:
        if self.is_away:
            raise TrackerError(f"{self.name} does not answer")
        self.opened.append(run.run_id)
        yield FakeRun(self, run.run_id)


@dataclass
class FakeRun:
    tracker: FakeTracker
    run_id: str

    @property
    def sent(self) -> Sent:
        return self.tracker.has.get(self.run_id, NOTHING_SENT)

    def write(self, news: News) -> None:
        sent = news.sent
        for row in news.rows:
            self.tracker.steps.setdefault(self.run_id, []).append(row.step)
            sent = progressed(sent, row)
        things = news.logged(sent)
        self.tracker.logged += [f"{item.name} {item.step}" for item, _ in things]
        self.tracker.has[self.run_id] = things.sent


@pytest.fixture
def tracker() -> FakeTracker:
    return FakeTracker()


def story_of(store: FakeObjectStore, tracks: Tracks, run_id: str) -> Story:
    story = Story(store, run_id)
    story.attempt("preempted", last_step=23, commits=(10, 20))
    return write(tracks, story)


def write(tracks: Tracks, story: Story) -> Story:
    story.write_tracks()
    tracks.project(story.history.name)
    return story


def tick(
    tracks: Tracks, ledger: Ledger, *trackers: FakeTracker, projects: tuple[str, ...] = ()
) -> Tick[Exported]:
    given = [
        NamedTracker(tracker=each, cursor=f"tracker-{n}", projects=projects)
        for n, each in enumerate(trackers)
    ]
    return send_what_is_due(tracks, ledger, StoredCursors(tracks.store), given, cache=None)


def test_each_run_is_sent_and_one_without_news_is_not_even_opened(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore, tracker: FakeTracker
) -> None:
    first = story_of(store, tracks, "r-1")
    story_of(store, tracks, "r-2")
    assert [each.steps for each in tick(tracks, ledger, tracker).done] == [20, 20]
    assert tick(tracks, ledger, tracker).done == ()
    first.history.note()
    write(tracks, first)
    assert tick(tracks, ledger, tracker).done == ()
    assert tracker.opened == ["r-1", "r-2"]  # a note changes no curve
    first.attempt("completed", last_step=40, commits=(40,))
    write(tracks, first)
    assert [each.steps for each in tick(tracks, ledger, tracker).done] == [20]
    assert tracker.steps["r-1"] == list(range(1, 41))


def log(store: FakeObjectStore, story: Story, *steps: int) -> None:
    """Store that the newest attempt logged a text at each of these steps."""
    data, state = b"hello", story.history.state
    attempt = state.attempts[-1]
    assert attempt.placed is not None
    store.put(part_key(state.run_id, sha256_hex(data)), data)
    items = [
        Logged(
            step=step,
            name="sample",
            kind=TEXT,
            sha256=sha256_hex(data),
            size_bytes=len(data),
            media_type=AS_TEXT,
        )
        for step in steps
    ]
    store.put(index_key(state.ref(attempt), attempt.placed.launch_id), index_bytes(items, ()))


def test_what_comes_after_a_runs_newest_record_is_sent_too(
    tracks: Tracks,
    ledger: Ledger,
    store: FakeObjectStore,
    tracker: FakeTracker,
    clock: FakeClock,
) -> None:
    """What is logged is stored seconds after the numbers of its step, and journals come in parts."""
    story = Story(store, "r-1")
    story.begin()
    story.ship(range(1, 16))
    story.commit(20)
    clock.at = write(tracks, story).history.at
    tick(tracks, ledger, tracker)
    assert tracker.steps["r-1"] == list(range(1, 15))  # an evaluation of the last may still come
    story.ship(range(1, 24))
    log(store, story, 12, 22)
    [found] = tick(tracks, ledger, tracker).done
    assert (found.steps, found.logged) == (5, 1)
    assert tracker.logged == ["sample 12"]
    log(store, story, 12, 22, 19, 23)
    [found] = tick(tracks, ledger, tracker).done
    assert (found.steps, found.logged) == (0, 1)
    count = len(tracker.opened)
    log(store, story, 12, 22, 19, 23, 24)  # beyond the newest commit
    assert tick(tracks, ledger, tracker).done == ()
    assert len(tracker.opened) == count
    story.end("preempted", last_step=23)
    write(tracks, story)
    tick(tracks, ledger, tracker)
    log(store, story, 12, 22, 19, 23, 24, 20)
    clock.at = story.history.at + LATE_MAX - timedelta(seconds=30)
    assert [each.logged for each in tick(tracks, ledger, tracker).done] == [1]
    clock.at = story.history.at + LATE_MAX + timedelta(seconds=30)
    count = len(tracker.opened)
    log(store, story, 12, 22, 19, 23, 24, 20, 1)
    assert tick(tracks, ledger, tracker).done == ()
    assert len(tracker.opened) == count


def test_a_tracker_that_is_away_is_a_problem_gets_it_later_and_keeps_no_other_waiting(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore, tracker: FakeTracker
) -> None:
    story_of(store, tracks, "r-1")
    away = FakeTracker(name="the one that is away", is_away=True)
    found = tick(tracks, ledger, away, tracker)
    assert found.problems == ("the one that is away does not answer",)
    assert tracker.steps["r-1"] == list(range(1, 21))
    away.is_away = False
    assert [each.tracker for each in tick(tracks, ledger, away, tracker).done] == [away.name]


def test_a_run_that_takes_long_is_sent_in_several_ticks(
    tracks: Tracks,
    ledger: Ledger,
    store: FakeObjectStore,
    tracker: FakeTracker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story_of(store, tracks, "r-1")
    with monkeypatch.context() as patch:
        patch.setattr(following, "RUN_S_MAX", 0.0)
        assert tick(tracks, ledger, tracker).problems == (
            "a tracker has it up to step 1; the next tick sends more.",
        )
    assert tick(tracks, ledger, tracker).problems == ()
    assert tracker.steps["r-1"] == list(range(1, 21))


def test_runs_that_finished_long_ago_and_other_projects_are_left_alone(
    tracks: Tracks,
    ledger: Ledger,
    store: FakeObjectStore,
    tracker: FakeTracker,
    clock: FakeClock,
) -> None:
    story = story_of(store, tracks, "r-1")
    story.history.stop().finish("user")
    write(tracks, story)
    assert tick(tracks, ledger, tracker, projects=("another",)).done == ()
    finished_at = story.history.state.finished_at
    assert finished_at is not None
    clock.at = finished_at + LOOK_BACK + timedelta(hours=1)
    assert tick(tracks, ledger, tracker).done == ()
    clock.at = finished_at + LOOK_BACK - timedelta(hours=1)
    assert [each.steps for each in tick(tracks, ledger, tracker).done] == [20]
