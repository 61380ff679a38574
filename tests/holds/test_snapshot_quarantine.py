"""A snapshot with bad rows: quarantined when the confirmation failed, and refused until released."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bodies import TRAIN, ended
from tests.deciders import retried, settled_run
from tests.fakes import FakeClock, FakeObjectStore
from tests.histories import DatasetHistory, History
from tracks_dagster.attempts.effects.runs import open_first_attempt
from tracks_dagster.holds.effects.holds import Holds
from tracks_dagster.holds.effects.quarantines import (
    consumers,
    find_any_snapshot,
    quarantine_snapshot,
    release_snapshot,
)
from tracks_dagster.ledger.effects.deciding import Settled
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.track.bodies import SnapshotRef
from tracks_dagster.track.errors import InvalidInput, UnknownRun
from tracks_dagster.track.names import WATCH_ATTEMPTS
from tracks_dagster.track.records import Kind, Record
from tracks_dagster.training.saves.manifest import StoredCheckpoints

BAD = "ValueError: row 17 has no label"


@pytest.fixture
def run(store: FakeObjectStore, clock: FakeClock) -> History:
    """A run whose first attempt met bad rows, and a second run on the same snapshot."""
    DatasetHistory("aws-docs").declare().commit(TRAIN.snapshot_id).write_to(store)
    other = History("r-2").declare().open().place().restore().commit(10)
    other.open_eval(other.state.checkpoints[0].ref).end("preempted", last_step=12)
    other.write_to(store)
    history = History().declare().open().place().restore().commit(10)
    history.end("bad_input_data", last_step=12, root_message=BAD)
    history.write_to(store)
    clock.at = history.at
    clock.advance(60)
    return history


@pytest.fixture
def hands(store: FakeObjectStore, ledger: Ledger, run: History) -> dict[str, Any]:
    Projector(store, ledger).scan()
    return {"checkpoints": StoredCheckpoints(store), "ledger": ledger}


def settled(tracks: Tracks, hands: dict[str, Any], run_id: str = "r-1") -> Settled:
    return settled_run(
        tracks,
        run_id,
        reasons=None,
        decided_by=WATCH_ATTEMPTS,
        policy=DEFAULT_POLICY,
        **hands,
    )


def end_the_retry(tracks: Tracks, reason: str = "bad_input_data") -> None:
    """End the second attempt of r-1 as well."""
    body = ended(reason, last_step=12, root_message=BAD, at=tracks.now())
    draft = tracks.draft(Kind.ATTEMPT_ENDED, body, attempt_id=2)
    assert tracks.decide_run("r-1", lambda state: draft) is not None


@pytest.fixture
def confirmed(run: History, tracks: Tracks, hands: dict[str, Any], clock: FakeClock) -> Settled:
    """The confirmation failed too, and that is settled."""
    assert settled(tracks, hands).what == "opened"
    assert Holds(tracks).on_snapshot(TRAIN) is None  # one failure may be the machine's
    end_the_retry(tracks)
    clock.advance(60)
    return settled(tracks, hands)


def test_the_snapshot_is_quarantined_when_the_confirmation_failed_too(
    confirmed: Settled, tracks: Tracks, hands: dict[str, Any]
) -> None:
    assert confirmed.what == "refused"
    assert confirmed.record is not None
    assert confirmed.record.body["limit"] == "reason"
    hold = Holds(tracks).on_snapshot(TRAIN)
    assert hold is not None
    assert "r-1/a02 ended as bad_input_data on it, and so did a retry: " + BAD in hold.sentence
    assert settled(tracks, hands).what == "waiting"


def test_the_refusal_names_everything_that_used_it(confirmed: Settled) -> None:
    assert confirmed.record is not None
    text = confirmed.record.body["what_to_do"]
    assert "2 runs (r-1, r-2)" in text or "2 runs (r-2, r-1)" in text
    for name in ("r-1/a02", "r-1/a01", "r-2/a01", "r-1@10", "r-2@10", "r-2/heldout-loss@10"):
        assert name in text
    assert f"tracks release snapshot:aws-docs@{TRAIN.snapshot_id[:12]}" in text


def test_every_new_attempt_on_it_is_refused(
    confirmed: Settled, tracks: Tracks, hands: dict[str, Any], store: FakeObjectStore
) -> None:
    other = settled(tracks, hands, "r-2")  # preempted, through no fault of its own
    assert other.what == "refused"
    assert other.record is not None
    assert other.record.body["limit"] == "snapshot"
    assert "is in quarantine" in other.why
    assert "tracks retry r-2" in other.record.body["what_to_do"]
    with pytest.raises(InvalidInput, match=r"r-1 cannot be retried: snapshot:.* is in quarantine"):
        by_ann(tracks)
    History("r-3").declare().write_to(store)
    with pytest.raises(InvalidInput, match=r"first attempt of r-3 cannot be opened: snapshot"):
        open_first_attempt(tracks, "r-3", decided_by="ann")


def test_after_its_release_a_person_goes_on(confirmed: Settled, tracks: Tracks) -> None:
    assert release_snapshot(tracks, TRAIN, by="ann", why="The reader was wrong.") is not None
    assert release_snapshot(tracks, TRAIN, by="ann", why="again") is None
    assert by_ann(tracks).attempt_id == 3


def test_without_a_confirmation_nothing_is_quarantined(
    run: History, tracks: Tracks, hands: dict[str, Any], clock: FakeClock
) -> None:
    settled(tracks, hands)
    end_the_retry(tracks, "preempted")
    clock.advance(60)
    assert settled(tracks, hands).what == "opened"
    assert Holds(tracks).on_snapshot(TRAIN) is None


def test_a_crash_between_quarantine_and_refusal_is_taken_up(
    run: History, tracks: Tracks, hands: dict[str, Any], clock: FakeClock
) -> None:
    settled(tracks, hands)
    end_the_retry(tracks)
    clock.advance(60)
    quarantine_snapshot(tracks, TRAIN, by=WATCH_ATTEMPTS, why="r-1/a02 ended as bad_input_data")
    again = settled(tracks, hands)
    assert again.record is not None
    assert (again.what, again.record.body["limit"]) == ("refused", "reason")
    kinds = [record.kind for record in tracks.records("datasets/aws-docs")]
    assert kinds.count(Kind.SNAPSHOT_QUARANTINED) == 1


def test_a_snapshot_that_no_track_knows_does_not_keep_the_refusal_away(
    run: History, tracks: Tracks, hands: dict[str, Any], clock: FakeClock, store: FakeObjectStore
) -> None:
    for key in [key for key in store.objects if key.startswith("datasets/")]:
        store.delete(key)
    settled(tracks, hands)
    end_the_retry(tracks)
    clock.advance(60)
    fresh = Tracks(store, now=clock, new_uid=tracks.new_uid, project=lambda name: None)
    refused = settled(fresh, hands)
    assert refused.what == "refused"
    assert refused.record is not None
    assert "could not be quarantined" in refused.record.body["what_to_do"]


def test_what_cannot_be_quarantined_is_said(run: History, tracks: Tracks, ledger: Ledger) -> None:
    with pytest.raises(UnknownRun, match="There is no dataset 'birds'"):
        find_any_snapshot(tracks, "birds", "abcdef")
    nothing = SnapshotRef(dataset="aws-docs", snapshot_id="e" * 64)
    with pytest.raises(UnknownRun, match="no snapshot eeeeeeeeeeee of dataset 'aws-docs'"):
        quarantine_snapshot(tracks, nothing, by="ann", why="bad")
    assert consumers(ledger, nothing).sentence == "Nothing has used it."


def test_of_many_consumers_the_newest_are_named_and_all_are_counted(
    run: History, store: FakeObjectStore, ledger: Ledger
) -> None:
    for number in range(3, 30):
        History(f"r-{number}").declare().open().write_to(store)
    Projector(store, ledger).scan()
    used = consumers(ledger, TRAIN)
    assert (used.run_count, len(used.runs), used.attempt_count) == (29, 10, 29)
    assert "29 runs (" in used.sentence
    assert "and 19 more)" in used.sentence


def by_ann(tracks: Tracks) -> Record:
    return retried(tracks, "r-1", by="ann", why="It is well.")
