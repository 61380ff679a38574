"""What outlived its attempt is swept with a grace, recorded in the track, and never another home's."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest

from tests.bodies import BEGIN
from tests.fakes import FakeClock, FakeObjectStore
from tests.histories import History
from tests.stories import Story
from tracks_dagster.attempts.effects.sweeping import RUNS_MAX, sweep
from tracks_dagster.attempts.orphans import (
    ENDED_GRACE,
    SERVICE,
    UNKNOWN_GRACE,
    Fate,
    StandingGang,
    orphans,
)
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.track.errors import GangError
from tracks_dagster.track.names import run_track

OURS, THEIRS = "memory://fake", "memory://other"


class FakeCluster:
    """Objects that stand until they are swept."""

    def __init__(self, *standing: StandingGang) -> None:
        self.left = list(standing)
        self.problem: GangError | None = None

    def standing(self) -> Sequence[StandingGang]:
        return tuple(self.left)

    def sweep(self, gang: StandingGang) -> None:
        if self.problem is not None:
            raise self.problem
        self.left.remove(gang)


def gang(
    run_id: str = "r-1",
    attempt_id: int = 1,
    *,
    kind: str = "Job",
    store_url: str = OURS,
    made_at: datetime = BEGIN,
) -> StandingGang:
    return StandingGang(
        run_id=run_id,
        attempt_id=attempt_id,
        kind=kind,
        name=f"tracks-{run_id}-{attempt_id}",
        made_at=made_at,
        store_url="" if kind == SERVICE else store_url,
    )


ENDED = Fate(is_known=True, ended_at=BEGIN)
OPEN = Fate(is_known=True)
UNKNOWN = Fate(is_known=False)
LATE = BEGIN + UNKNOWN_GRACE + ENDED_GRACE


@pytest.mark.parametrize(
    ("standing", "fate", "now", "swept"),
    [
        (gang(), ENDED, BEGIN + ENDED_GRACE, True),
        (gang(), ENDED, BEGIN + ENDED_GRACE - timedelta(seconds=1), False),  # a close under way
        (gang(), OPEN, LATE, False),
        (gang(store_url=THEIRS), ENDED, LATE, False),
        (gang(), UNKNOWN, BEGIN + UNKNOWN_GRACE, True),
        (gang(), UNKNOWN, BEGIN + UNKNOWN_GRACE - timedelta(seconds=1), False),
        (gang(store_url=THEIRS), UNKNOWN, LATE, False),
        (gang(store_url=""), UNKNOWN, LATE, False),  # it does not say whose it is
        (gang(kind=SERVICE), ENDED, LATE, True),
        (gang(kind=SERVICE), UNKNOWN, LATE, True),
        (gang(kind=SERVICE), OPEN, LATE, False),
    ],
)
def test_what_is_swept_depends_on_whose_it_is_and_how_long_its_attempt_is_over(
    standing: StandingGang, fate: Fate, now: datetime, swept: bool
) -> None:
    found = orphans([standing], {standing.key: fate}, OURS, now)
    assert [orphan.gang for orphan in found] == ([standing] if swept else [])


def test_a_service_goes_with_its_job_and_stays_with_one_of_another_home() -> None:
    fates = {"r-1/a01": ENDED}
    both = [gang(), gang(kind=SERVICE)]
    assert [orphan.gang.kind for orphan in orphans(both, fates, OURS, LATE)] == ["Job"]
    theirs = [gang(store_url=THEIRS), gang(kind=SERVICE)]
    assert orphans(theirs, fates, OURS, LATE) == []


def test_an_attempt_that_nobody_asked_about_is_left_alone() -> None:
    assert orphans([gang()], {}, OURS, LATE) == []


def test_a_job_whose_attempt_has_ended_is_deleted_and_noted_once(
    tracks: Tracks, store: FakeObjectStore, ledger: Ledger, clock: FakeClock
) -> None:
    History("r-1").declare().open().supervise().place().end("preempted").write_to(store)
    tracks.project(run_track("r-1"))
    cluster = FakeCluster(gang())
    clock.at = max(clock.at, ended_at(tracks)) + ENDED_GRACE
    swept = sweep(tracks, ledger, cluster)
    assert cluster.left == []
    assert "Deleted Job tracks-r-1-1: its attempt ended 5 minutes ago." in swept.problems[0]
    again = sweep(tracks, ledger, cluster)
    assert again.problems == ()
    (note,) = tracks.run("r-1").notes
    assert (note.body.by, note.body.data["name"]) == ("sweeper", "tracks-r-1-1")


def test_what_takes_long_to_end_is_noted_once(
    tracks: Tracks, store: FakeObjectStore, ledger: Ledger, clock: FakeClock
) -> None:
    """As a job that is COMPLETING on a node that is away, or pods with a long grace."""
    History("r-1").declare().open().supervise().place().end("preempted").write_to(store)
    tracks.project(run_track("r-1"))
    clock.at = max(clock.at, ended_at(tracks)) + ENDED_GRACE
    cluster = FakeCluster(gang())
    for _ in range(3):
        sweep(tracks, ledger, cluster)
        cluster.left = [gang()]
    assert len(tracks.run("r-1").notes) == 1


def ended_at(tracks: Tracks) -> datetime:
    at = tracks.run("r-1").attempts[0].ended_at
    assert at is not None
    return at


def test_the_gangs_of_open_attempts_are_left_alone_and_their_tracks_unread(
    tracks: Tracks, store: FakeObjectStore, ledger: Ledger, clock: FakeClock
) -> None:
    History("r-1").declare().open().write_to(store)
    tracks.project(run_track("r-1"))
    clock.advance(10**6)
    cluster, count = FakeCluster(gang()), len(store.calls)
    assert sweep(tracks, ledger, cluster).problems == ()
    assert len(cluster.left) == 1
    assert len(store.calls) == count


def test_open_attempts_are_known_however_many_runs_have_something_standing(
    tracks: Tracks, store: FakeObjectStore, ledger: Ledger, clock: FakeClock
) -> None:
    for number in (0, RUNS_MAX):
        History(f"r-{number:04}").declare().open().write_to(store)
        tracks.project(run_track(f"r-{number:04}"))
    cluster = FakeCluster(*(gang(f"r-{number:04}") for number in range(RUNS_MAX + 1)))
    clock.advance(10**6)
    count = len(store.calls)
    sweep(tracks, ledger, cluster)
    asked = {key.split("/")[1] for _, key in store.calls[count:]}
    assert {"r-0000", f"r-{RUNS_MAX:04}"}.isdisjoint(asked)


def test_a_ledger_that_is_behind_deletes_nothing_of_an_open_attempt(
    tracks: Tracks, store: FakeObjectStore, ledger: Ledger, clock: FakeClock
) -> None:
    History("r-1").declare().open().write_to(store)  # not projected
    clock.advance(10**6)
    cluster = FakeCluster(gang())
    sweep(tracks, ledger, cluster)
    assert len(cluster.left) == 1


def test_a_job_of_a_run_that_does_not_exist_is_deleted_after_its_grace(
    tracks: Tracks, ledger: Ledger, clock: FakeClock
) -> None:
    cluster = FakeCluster(gang("gone", made_at=clock.at))
    sweep(tracks, ledger, cluster)
    assert len(cluster.left) == 1
    clock.advance(UNKNOWN_GRACE.total_seconds())
    swept = sweep(tracks, ledger, cluster)
    assert cluster.left == []
    assert "the store knows no such attempt" in swept.problems[0]


def test_one_that_cannot_be_deleted_is_reported_and_not_noted(
    tracks: Tracks, ledger: Ledger, clock: FakeClock, story: Story
) -> None:
    cluster = FakeCluster(
        gang("gone", made_at=clock.at - UNKNOWN_GRACE), gang("also", made_at=BEGIN)
    )
    cluster.problem = GangError("Cannot sweep it: may not delete jobs")
    clock.advance(10**6)
    swept = sweep(tracks, ledger, cluster)
    assert len(cluster.left) == 2
    assert len(swept.problems) == 2
    assert all("may not delete jobs" in problem for problem in swept.problems)
