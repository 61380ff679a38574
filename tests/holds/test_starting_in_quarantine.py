"""An attempt that was opened before what it builds on was put in quarantine starts no gang."""

from __future__ import annotations

import pytest

from tests.attempts.test_resuming import HERE, supervised
from tests.attempts.test_retry import CONFIG
from tests.attempts.test_supervise import TRAINER
from tests.bodies import HELDOUT, TRAIN
from tests.fakes import FakeClock, FakeGangs, FakeObjectStore
from tests.histories import DatasetHistory, History
from tests.holds.test_source_quarantines import by_person, free, hold, on, settled
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.track.reasons import TerminationReason


@pytest.fixture
def gangs() -> FakeGangs:
    return FakeGangs()


@pytest.fixture
def opened(store: FakeObjectStore, clock: FakeClock, ledger: Ledger) -> History:
    """Step 20 by attempt 1 on node-1, 30 by attempt 2 on node-2; attempt 3 is open."""
    for ref in (TRAIN, HELDOUT):
        DatasetHistory(ref.dataset).declare().commit(ref.snapshot_id).write_to(store)
    history = History("r-1").declare(config=CONFIG, trainer=TRAINER)
    history.open().place(environment=HERE).restore().commit(20).end("preempted", last_step=22)
    history.open().place(environment=HERE, ranks=on("node-2")).restore().commit(30)
    history.end("preempted", last_step=33).open()
    history.write_to(store)
    Projector(store, ledger).scan()
    clock.at = history.at
    clock.advance(60)
    return history


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("node:node-2", TerminationReason.USER_CANCELLED),
        ("checkpoint:r-1@30", TerminationReason.USER_CANCELLED),
        ("code:c0ffee", TerminationReason.USER_CANCELLED),
        (f"snapshot:aws-docs@{TRAIN.snapshot_id[:8]}", TerminationReason.BAD_INPUT_DATA),
    ],
)
def test_no_gang_starts_and_the_end_says_why_and_what_releases_it(
    opened: History,
    tracks: Tracks,
    ledger: Ledger,
    gangs: FakeGangs,
    clock: FakeClock,
    source: str,
    reason: TerminationReason,
) -> None:
    hold(tracks, ledger, source)
    attempt = supervised(tracks, gangs, clock, attempt_id=3)
    assert gangs.specs == []
    assert attempt.ended is not None
    assert (attempt.reason, attempt.ended.rule) == (reason, "start_refused")
    assert attempt.ended.root_message.startswith("No gang was started: ")
    assert "release" in attempt.ended.root_message


def test_what_a_person_retries_then_begins_before_the_source(
    opened: History, tracks: Tracks, ledger: Ledger, gangs: FakeGangs, clock: FakeClock
) -> None:
    hold(tracks, ledger, "node:node-2")
    supervised(tracks, gangs, clock, attempt_id=3)
    waits = settled(tracks)
    assert waits.what == "waiting"  # for a person: nothing of it is retried by itself
    assert "No gang was started: " in waits.why
    assert "`tracks release node:node-2" in waits.why
    assert "A person ended" not in waits.why
    by_person(tracks)
    resume = tracks.run("r-1").attempts[-1].opened.resume
    assert resume is not None
    assert resume.step == 20


def test_what_was_to_train_on_a_snapshot_in_quarantine_is_refused_for_its_data(
    opened: History, tracks: Tracks, ledger: Ledger, gangs: FakeGangs, clock: FakeClock
) -> None:
    hold(tracks, ledger, f"snapshot:aws-docs@{TRAIN.snapshot_id[:8]}")
    supervised(tracks, gangs, clock, attempt_id=3)
    settling = settled(tracks)
    assert settling.record is not None
    assert (settling.what, settling.record.body["limit"]) == ("refused", "snapshot")


def test_what_was_released_before_it_is_asked_starts(
    opened: History, tracks: Tracks, ledger: Ledger, gangs: FakeGangs, clock: FakeClock
) -> None:
    hold(tracks, ledger, "node:node-2")
    free(tracks, ledger, "node:node-2")
    supervised(tracks, gangs, clock, attempt_id=3)
    assert [spec.attempt_id for spec in gangs.specs] == [3]
