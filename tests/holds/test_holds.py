"""One reader finds every hold on a run's next attempt, as one kind of value."""

from __future__ import annotations

from datetime import timedelta

from tests.bodies import BEGIN, TRAIN
from tests.fakes import FakeClock, FakeObjectStore
from tests.histories import DatasetHistory, History
from tests.holds.test_source_quarantines import hold
from tracks_dagster.holds.effects.holds import Holds, Pools
from tracks_dagster.holds.effects.quarantines import quarantine_snapshot, release_snapshot
from tracks_dagster.holds.hold import (
    HoldAct,
    key_of_checkpoint,
    key_of_pool,
    key_of_run,
    key_of_snapshot,
)
from tracks_dagster.holds.storm import StormRule
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.track.bodies import CodeVersion, SnapshotRef
from tracks_dagster.track.records import Kind

COMMIT = "4be1d8f02c7a95e36d1b8a90cf2e7715d3a6c0b1"
STORM = StormRule(ends=2, runs=2, share=0.1)


def grown(store: FakeObjectStore, ledger: Ledger, clock: FakeClock) -> History:
    """A branch that saved step 30, was preempted with two other runs, and whose source was deleted."""
    DatasetHistory(TRAIN.dataset).declare().commit(TRAIN.snapshot_id).write_to(store)
    source = History("r-0").declare().open().place().restore().commit(20)
    ref = source.state.checkpoints[0].ref
    source.end("preempted", last_step=21).decide_checkpoint(Kind.CHECKPOINT_DELETED, ref)
    begin = BEGIN + timedelta(minutes=10)
    code = CodeVersion(git_commit=COMMIT, branch="main", dirty=False, package_version="0.1.0")
    branch = History("b-1", begin=begin).declare(branched_from=ref, code=code).open().place()
    branch.restore().commit(30).end("preempted", last_step=31)
    other = History("r-2", begin=begin).declare().open().end("preempted")
    for history in (source, branch, other):
        history.write_to(store)
    Projector(store, ledger).scan()
    clock.at = branch.at + timedelta(seconds=1)
    return branch


def test_every_veto_on_a_next_attempt_is_a_hold(
    store: FakeObjectStore, ledger: Ledger, clock: FakeClock, tracks: Tracks
) -> None:
    state, now = grown(store, ledger, clock).state, clock.at
    assert [each.act for each in Holds(tracks).on_run(state, now)] == [HoldAct.LOSS]
    quarantine_snapshot(tracks, TRAIN, by="ann", why="bad rows")
    hold(tracks, ledger, f"code:{COMMIT}")
    source, own = state.declared.branched_from, state.checkpoints[0].ref
    assert source is not None
    found = Holds(tracks, pools=Pools(ledger, STORM, now=now)).on_run(state, now)
    assert {(each.act, each.what) for each in found} == {
        (HoldAct.QUARANTINE, key_of_snapshot(TRAIN)),
        (HoldAct.LOSS, key_of_checkpoint(source)),
        (HoldAct.STORM, key_of_pool("local/cpu")),
        (HoldAct.QUARANTINE, key_of_run("b-1")),
        (HoldAct.QUARANTINE, key_of_checkpoint(own)),
        (HoldAct.QUARANTINE, key_of_checkpoint(source)),  # trained on that snapshot as well
    }
    by_record = [each for each in found if each.act is HoldAct.QUARANTINE]
    assert all(each.by == "ann" and each.track and each.seq is not None for each in by_record)
    [storm] = [each for each in found if each.act is HoldAct.STORM]
    assert storm.until is not None
    assert storm.until > now


def test_a_tick_asks_once_and_again_once_something_was_decided(
    store: FakeObjectStore, ledger: Ledger, clock: FakeClock, tracks: Tracks
) -> None:
    grown(store, ledger, clock)
    holds = Holds(tracks)
    assert holds.on_snapshot(TRAIN) is None
    quarantine_snapshot(tracks, TRAIN, by="ann", why="bad rows")
    assert holds.on_snapshot(TRAIN) is None  # of this tick; the next one meets it
    holds.ask_again()
    assert holds.on_snapshot(TRAIN) is not None
    release_snapshot(tracks, TRAIN, by="ann", why="good rows")
    assert Holds(tracks).on_snapshot(TRAIN) is None


def test_the_snapshot_that_a_person_chooses_is_the_one_that_counts(
    store: FakeObjectStore, ledger: Ledger, clock: FakeClock, tracks: Tracks
) -> None:
    state = grown(store, ledger, clock).state
    quarantine_snapshot(tracks, TRAIN, by="ann", why="bad rows")
    other = SnapshotRef(dataset="other", snapshot_id="c" * 64)
    chosen = Holds(tracks).on_run(state, clock.at, snapshot=other)
    assert key_of_snapshot(TRAIN) not in {each.what for each in chosen}
    assert key_of_snapshot(TRAIN) in {each.what for each in Holds(tracks).on_run(state, clock.at)}
