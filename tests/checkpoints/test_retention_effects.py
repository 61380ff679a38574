"""Collection of a run's checkpoints with real manifests, and what a person reads of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.fakes import FakeClock, FakeObjectStore, Fault
from tests.stories import RUN_ID, Story
from tracks_dagster.checkpoints.effects import deletion
from tracks_dagster.checkpoints.effects import retention as service
from tracks_dagster.checkpoints.effects.collection import (
    FINISHED_S_MAX,
    TICK_S,
    collect_due,
    due_runs,
)
from tracks_dagster.checkpoints.effects.pins import (
    find_pinned,
    pin,
    pin_of_person,
    pin_source,
    release_branches,
    unpin,
)
from tracks_dagster.checkpoints.effects.retention import Collected, collect
from tracks_dagster.checkpoints.effects.verification import quarantine, verify
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.stores.overlay import OverlayStore
from tracks_dagster.track.bodies import CheckpointDecision
from tracks_dagster.track.errors import InvalidInput, StoreUnavailable
from tracks_dagster.track.names import run_track
from tracks_dagster.track.records import Kind
from tracks_dagster.track.states.checkpoints import CheckpointRef, manifest_key
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.track import log_key
from tracks_dagster.training.saves.manifest import StoredCheckpoints

DAY_S = 24 * 3600.0


@pytest.fixture
def run(store: FakeObjectStore, clock: FakeClock) -> Story:
    """One attempt that committed five checkpoints and was preempted."""
    story = Story(store)
    story.attempt("preempted", last_step=53, commits=(10, 20, 30, 40, 50))
    story.write_tracks()
    clock.at = story.history.at
    return story


def collected(tracks: Tracks) -> Collected:
    return collect(tracks, StoredCheckpoints(tracks.store), RUN_ID, by="tests")


def steps(refs: object) -> list[int]:
    return [each.ref.step for each in refs]  # type: ignore[attr-defined]


def damage(store: FakeObjectStore, story: Story, index: int) -> str:
    prefix = story.history.state.checkpoints[index].ref.object_prefix
    key = next(key for key in sorted(store.objects) if key.startswith(f"{prefix}chunks/"))
    store.put(key, b"other bytes")
    return key


def test_a_pass_verifies_supersedes_and_later_deletes(
    run: Story, tracks: Tracks, clock: FakeClock, store: FakeObjectStore
) -> None:
    first = collected(tracks)
    assert steps(first.read) == [50]
    assert steps(first.superseded) == [10, 20]
    assert (first.deleted, first.freed_bytes) == ((), 0)
    clock.advance(DAY_S)
    second = collected(tracks)
    assert (steps(second.read), steps(second.deleted)) == ([], [10, 20])
    assert second.freed_bytes > 0
    gone = [c.ref for c in tracks.run(RUN_ID).checkpoints if c.deleted]
    assert not any(key.startswith(g.object_prefix) for g in gone for key in store.objects)
    assert collected(tracks).deleted == ()


def test_the_record_of_a_deletion_comes_before_its_first_byte_goes(
    run: Story, tracks: Tracks, clock: FakeClock, store: FakeObjectStore
) -> None:
    collected(tracks)
    clock.advance(DAY_S)
    store.calls.clear()
    deleted = collected(tracks).deleted
    track = run_track(RUN_ID)
    records = [r for r in tracks.records(track) if r.kind is Kind.CHECKPOINT_DELETED]
    for record, done in zip(records, deleted, strict=True):
        decided = store.calls.index(("create", log_key(track, record.seq)))
        prefix = done.ref.object_prefix
        gone = [
            n
            for n, (what, key) in enumerate(store.calls)
            if what == "delete" and key.startswith(prefix)
        ]
        assert gone
        assert decided < min(gone)
    assert len(records) == 2


def test_a_dry_run_tells_what_a_pass_does_and_writes_nothing(
    run: Story, tracks: Tracks, clock: FakeClock, store: FakeObjectStore
) -> None:
    for _ in range(2):
        before = dict(store.objects)
        above = OverlayStore(store)
        tried = Tracks(above, now=clock, new_uid=tracks.new_uid, project=lambda name: None)
        result = collect(tried, StoredCheckpoints(above), RUN_ID, by="tests")
        assert store.objects == before
        done = collected(tracks)
        assert steps(result.superseded) == steps(done.superseded)
        assert (result.deleted, result.freed_bytes) == (done.deleted, done.freed_bytes)
        assert [j.why for j in result.kept] == [j.why for j in done.kept]
        clock.advance(DAY_S)


def test_corruption_is_reported_with_object_hashes_and_what_a_resume_falls_back_to(
    run: Story, tracks: Tracks, store: FakeObjectStore
) -> None:
    key = damage(store, run, -1)
    done = collected(tracks)
    (corrupt,) = done.corrupt
    assert corrupt.problem is not None
    assert key in corrupt.problem
    assert "expected" in corrupt.problem
    assert corrupt.fallback is not None
    assert corrupt.fallback.step == 40
    record = tracks.records(f"runs/{RUN_ID}")[corrupt.seq or 0]
    assert record.kind is Kind.CHECKPOINT_QUARANTINED
    assert "falls back to step 40 of attempt 1" in record.body["why"]
    assert steps(done.read) == [50, 40]


def test_a_manifest_that_is_corrupt_stops_deletions_until_it_is_gone_itself(
    run: Story, tracks: Tracks, clock: FakeClock, store: FakeObjectStore
) -> None:
    collected(tracks)
    clock.advance(DAY_S)
    store.put(manifest_key(run.history.state.checkpoints[2].ref), b"{}")
    done = collected(tracks)
    assert (done.deleted, steps(done.corrupt)) == ((), [30])
    assert "the manifest of step 30 of attempt 1 cannot be read" in done.waiting[0]
    clock.advance(DAY_S)
    # Step 20 is among the last three again, now that 30 counts no more.
    assert sorted(steps(collected(tracks).deleted)) == [10, 30]


def test_many_chunks_are_listed_in_an_object_that_the_record_names(
    run: Story,
    tracks: Tracks,
    clock: FakeClock,
    store: FakeObjectStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deletion, "CHUNKS_IN_RECORD_MAX", 0)
    collected(tracks)
    clock.advance(DAY_S)
    assert steps(collected(tracks).deleted) == [10, 20]
    decided = tracks.run(RUN_ID).checkpoints[0].deletion
    assert decided is not None
    assert decided.chunks == ()
    assert decided.chunks_key in store.objects
    prefix = run.history.state.checkpoints[0].ref.object_prefix
    assert not [key for key in store.objects if key.startswith(prefix)]


def test_a_lost_list_of_chunks_is_reported_and_keeps_nothing_else_waiting(
    run: Story,
    tracks: Tracks,
    clock: FakeClock,
    store: FakeObjectStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deletion, "CHUNKS_IN_RECORD_MAX", 0)
    collected(tracks)
    clock.advance(DAY_S)
    before = dict(store.objects)
    assert steps(collected(tracks).deleted) == [10, 20]
    first = tracks.run(RUN_ID).checkpoints[0]
    assert first.deletion is not None
    assert first.deletion.chunks_key is not None
    store.delete(first.deletion.chunks_key)
    key = manifest_key(first.ref)
    store.put(key, before[key])  # as after a power loss
    done = collected(tracks)
    (result,) = done.waiting
    assert first.deletion.chunks_key in result
    assert "until it is restored" in result
    assert key not in store.objects  # what lies under its own prefix goes without a list
    assert collected(tracks).waiting == ()


def test_a_list_that_no_record_names_goes_after_a_day(
    run: Story,
    tracks: Tracks,
    clock: FakeClock,
    store: FakeObjectStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deletion, "CHUNKS_IN_RECORD_MAX", 0)
    collected(tracks)
    clock.advance(DAY_S)
    store.fail("create", 1, Fault.FAILS)  # the list is stored, its record is not
    with pytest.raises(StoreUnavailable):
        collected(tracks)
    (orphan,) = store.list(f"runs/{RUN_ID}/deletions/")
    clock.advance(1)
    done = collected(tracks)
    assert (steps(done.deleted), done.leftover_count) == ([10, 20], 0)
    assert orphan in store.objects  # another collector might be about to name it
    clock.advance(deletion.LIST_UNNAMED_S_MAX + 1)
    assert collected(tracks).leftover_count == 1
    named = {c.deletion.chunks_key for c in tracks.run(RUN_ID).checkpoints if c.deletion}
    assert set(store.list(f"runs/{RUN_ID}/deletions/")) == named
    assert orphan not in named


def test_a_chunk_that_is_back_after_a_power_loss_goes_as_a_leftover(
    run: Story, tracks: Tracks, clock: FakeClock, store: FakeObjectStore
) -> None:
    collected(tracks)
    clock.advance(DAY_S)
    before = dict(store.objects)
    deleted = collected(tracks).deleted
    (key,) = deleted[0].chunks
    store.put(key, before[key])  # its removal was not durable, that of the manifest was
    assert collected(tracks).leftover_count == 1
    assert key not in store.objects


class ReadsWhile(StoredCheckpoints):
    """Lets something happen before the first manifest is read."""

    def __init__(self, store: FakeObjectStore, action: Callable[[], object]) -> None:
        super().__init__(store)
        self._actions = [action]

    def chunk_sizes(self, ref: CheckpointRef) -> Mapping[str, int]:
        while self._actions:
            self._actions.pop()()
        return super().chunk_sizes(ref)


def test_a_manifest_that_another_collector_deletes_meanwhile_is_not_called_damaged(
    run: Story, tracks: Tracks, clock: FakeClock, store: FakeObjectStore
) -> None:
    collected(tracks)
    clock.advance(DAY_S)
    other = Tracks(store, now=clock, new_uid=tracks.new_uid, project=lambda name: None)
    reader = ReadsWhile(store, lambda: collected(other))
    done = collect(tracks, reader, RUN_ID, by="tests")
    assert (done.deleted, done.waiting, done.corrupt) == ((), (), ())
    assert [c.status for c in tracks.run(RUN_ID).checkpoints[:2]] == ["deleted", "deleted"]


def test_a_pass_begins_nothing_after_its_time(
    run: Story, tracks: Tracks, clock: FakeClock, store: FakeObjectStore
) -> None:
    reader = StoredCheckpoints(store)
    none = collect(tracks, reader, RUN_ID, by="tests", until=clock.at)
    assert (none.read, none.superseded) == ((), ())
    collected(tracks)
    clock.advance(DAY_S)
    late = collect(tracks, reader, RUN_ID, by="tests", until=clock.at)
    assert late.deleted == ()
    assert "no time was left" in late.waiting[0]
    assert steps(collected(tracks).deleted) == [10, 20]


def test_many_due_deletions_are_decided_without_judging_all_of_them_each_time(
    run: Story, tracks: Tracks, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    collected(tracks)
    clock.advance(DAY_S)
    planned = []
    real = service.plan_deletions

    def counted(*given: object, **named: object) -> object:
        planned.append(1)
        return real(*given, **named)

    monkeypatch.setattr(service, "plan_deletions", counted)
    assert steps(collected(tracks).deleted) == [10, 20]
    assert len(planned) == 1


def test_bytes_that_were_never_committed_go_when_their_attempt_has_ended(
    run: Story, tracks: Tracks, store: FakeObjectStore
) -> None:
    fenced = f"runs/{RUN_ID}/attempts/1/fenced/step-60/chunks/x"
    journal = f"runs/{RUN_ID}/attempts/1/fenced/journal/000.jsonl"
    opened = f"runs/{RUN_ID}/attempts/2/launch-2/step-60/chunks/x"
    run.begin()
    run.write_tracks()
    for key in (fenced, journal, opened):
        store.put(key, b"bytes")
    assert collected(tracks).leftover_count == 1
    assert fenced not in store.objects
    assert {journal, opened} <= store.objects.keys()


def test_a_pinned_checkpoint_stays_until_it_is_unpinned(
    run: Story, tracks: Tracks, clock: FakeClock
) -> None:
    first = tracks.run(RUN_ID).checkpoints[0].ref
    holder = pin_of_person("ann")
    assert pin(tracks, first, holder=holder, by="ann", why="for a paper") is not None
    assert pin(tracks, first, holder=holder, by="ann", why="for a paper") is None
    assert steps(collected(tracks).superseded) == [20]
    assert find_pinned(tracks.run(RUN_ID), 10, holder=holder) == first
    with pytest.raises(InvalidInput, match="hold:bob does not hold step 10"):
        unpin(tracks, first, holder="hold:bob", by="bob", why="x")
    unpin(tracks, first, holder=holder, by="ann", why="published")
    assert steps(collected(tracks).superseded) == [10]
    clock.advance(DAY_S)
    collected(tracks)
    with pytest.raises(InvalidInput, match="was deleted and cannot be branched from or pinned"):
        pin(tracks, first, holder=holder, by="ann", why="too late")


def test_a_verification_is_recorded_also_after_the_end_of_the_run(
    run: Story, tracks: Tracks
) -> None:
    run.history.finish("user")
    run.write_tracks()
    checkpoint = tracks.run(RUN_ID).checkpoints[0]
    read = verify(tracks, StoredCheckpoints(tracks.store), checkpoint.ref, by="ann")
    assert read.problem is None
    assert tracks.run(RUN_ID).checkpoints[0].verified_at is not None


def test_every_run_is_the_first_of_some_tick(
    run: Story, tracks: Tracks, ledger: Ledger, clock: FakeClock
) -> None:
    tracks.project(f"runs/{RUN_ID}")
    declared = tracks.run(RUN_ID).declared
    for run_id in ("r-2", "r-3"):
        tracks.declare_run(replace(declared, run_id=run_id))
    firsts = set()
    for _ in range(3):
        firsts.add(due_runs(tracks, ledger)[0])
        clock.advance(TICK_S)
    assert firsts == {RUN_ID, "r-2", "r-3"}


def test_a_run_that_finished_long_ago_is_due_while_a_deletion_or_a_branch_is_awaited(
    run: Story, tracks: Tracks, ledger: Ledger, clock: FakeClock
) -> None:
    run.history.finish("user")
    run.write_tracks()
    tracks.project(f"runs/{RUN_ID}")
    newest = tracks.run(RUN_ID).checkpoints[-1].ref
    clock.advance(FINISHED_S_MAX + DAY_S)
    assert due_runs(tracks, ledger) == []
    pin_source(tracks, newest, "b-1", by="tests")
    assert due_runs(tracks, ledger) == [RUN_ID]
    clock.advance(DAY_S)
    done = collected(tracks)  # the branch was never declared: its pin is let go
    assert steps(done.superseded) == [10, 20]
    assert due_runs(tracks, ledger) == [RUN_ID]
    clock.advance(DAY_S)
    assert steps(collected(tracks).deleted) == [10, 20]
    assert due_runs(tracks, ledger) == []


def test_two_passes_at_once_let_go_of_a_branch_once(
    run: Story, tracks: Tracks, clock: FakeClock, store: FakeObjectStore
) -> None:
    ref = tracks.run(RUN_ID).checkpoints[0].ref
    pin_source(tracks, ref, "b-1", by="tests")
    clock.advance(DAY_S)
    other = Tracks(store, now=clock, new_uid=tracks.new_uid, project=lambda name: None)
    find = tracks.find_run

    def find_late(run_id: str) -> RunState | None:
        found = find(run_id)
        if run_id == "b-1":  # looked up: the other pass, then the branch's command, are faster
            assert len(release_branches(other, RUN_ID, by="other")) == 1
            pin_source(other, ref, "b-1", by="ann")
        return found

    tracks.find_run = find_late  # type: ignore[method-assign]
    assert release_branches(tracks, RUN_ID, by="tests") == ()
    assert other.run(RUN_ID).checkpoints[0].pins == {"branch:b-1"}


def test_a_command_that_is_repeated_a_day_later_pins_again_before_it_declares_the_branch(
    run: Story, tracks: Tracks, clock: FakeClock
) -> None:
    ref = tracks.run(RUN_ID).checkpoints[0].ref
    for _ in range(2):
        pin_source(tracks, ref, "b-1", by="ann")
    seq = tracks.run(RUN_ID).head.seq
    clock.advance(DAY_S - 1)
    pin_source(tracks, ref, "b-1", by="ann")
    assert tracks.run(RUN_ID).head.seq == seq + 1
    clock.advance(DAY_S - 1)
    assert release_branches(tracks, RUN_ID, by="tests") == ()


def test_a_quarantined_checkpoint_cannot_be_pinned(run: Story, tracks: Tracks) -> None:
    first = tracks.run(RUN_ID).checkpoints[0].ref
    quarantine(tracks, first, "rot", by="tests")
    with pytest.raises(InvalidInput, match="was quarantined and cannot be branched from or pinned"):
        pin(tracks, first, holder=pin_of_person("ann"), by="ann", why="for a paper")


def test_a_tick_collects_every_due_run_and_tells_of_those_that_fail(
    run: Story, tracks: Tracks, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracks.project(f"runs/{RUN_ID}")
    assert due_runs(tracks, ledger) == [RUN_ID]
    reader = StoredCheckpoints(tracks.store)
    until = tracks.now() + timedelta(seconds=600)
    done = collect_due(tracks, ledger, reader, by="tests", until=until)
    assert (steps(done.done[0].superseded), done.problems) == ([10, 20], ())
    tracks.store.put(f"runs/{RUN_ID}/log/{tracks.run(RUN_ID).head.seq + 1:012d}.json", b"{}")
    failed = collect_due(tracks, ledger, reader, by="tests", until=until)
    assert failed.problems[0].startswith(f"{RUN_ID}: ")


def test_where_space_is_needed_what_is_superseded_goes_before_its_grace_is_over(
    run: Story, tracks: Tracks
) -> None:
    done = collect(tracks, StoredCheckpoints(tracks.store), RUN_ID, by="tests", ignores_grace=True)
    assert (steps(done.superseded), steps(done.deleted)) == ([10, 20], [10, 20])
    assert done.freed_bytes > 0
    assert "its space is needed before the grace is over" in done.deleted[0].why


def test_where_space_is_needed_pins_and_quarantines_hold_all_the_same(
    run: Story, tracks: Tracks
) -> None:
    pinned, quarantined = (tracks.run(RUN_ID).checkpoints[i].ref for i in (0, 3))
    pin(tracks, pinned, holder=pin_of_person("ann"), by="ann", why="to compare")
    body = CheckpointDecision(
        manifest_sha256=quarantined.manifest_sha256, by="tests", why="a rollback passed over it"
    )
    draft = tracks.draft(Kind.CHECKPOINT_QUARANTINED, body)
    tracks.decide_run(RUN_ID, lambda state: draft)
    done = collect(tracks, StoredCheckpoints(tracks.store), RUN_ID, by="tests", ignores_grace=True)
    assert steps(done.deleted) == []  # 20, 30 and 50 are the last three that count
