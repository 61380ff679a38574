"""One archive holds what explains a run; nothing secret, nothing twice, the same bytes every time."""

from __future__ import annotations

import json
from functools import partial

import pytest

from tests.fakes import FakeObjectStore
from tests.histories import DatasetHistory, History
from tests.stories import RUN_ID, Story
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.review.effects import export as exporting
from tracks_dagster.review.effects.export import Exported, export_run
from tracks_dagster.stores.archive import MANIFEST, README
from tracks_dagster.track.errors import InvalidInput, UnknownRun
from tracks_dagster.track.names import QUARANTINES_TRACK, dataset_track, pool_track, run_track
from tracks_dagster.track.placement import pool_of
from tracks_dagster.track.records import sha256_hex
from tracks_dagster.track.text.redact import redact
from tracks_dagster.track.track import log_key

SECRET = "hunter2-of-the-team"


def exported(
    tracks: Tracks, run_id: str = RUN_ID, *, with_chunks: bool = False
) -> tuple[dict[str, bytes], Exported]:
    members: dict[str, bytes] = {}

    def add(name: str, data: bytes) -> None:
        assert name not in members
        members[name] = data

    clean = partial(redact, secrets=(SECRET,))
    done = export_run(tracks, run_id, add, with_chunks=with_chunks, redact=clean, version="1.0")
    return members, done


def keys_of(members: dict[str, bytes]) -> set[str]:
    return {name.removeprefix("store/") for name in members if name.startswith("store/")}


@pytest.fixture
def whole(story: Story) -> Story:
    """The whole story in a store that says which one it is."""
    story.store.put("format.json", b'{"format":1}')
    return story.whole()


def test_an_archive_holds_tracks_evidence_journals_and_manifests_and_no_chunk_or_row(
    whole: Story, tracks: Tracks, store: FakeObjectStore
) -> None:
    members, done = exported(tracks)
    expected = {key for key in store.objects if "/chunks/" not in key and "/shards/" not in key}
    assert keys_of(members) == expected
    assert all(members[f"store/{key}"] == store.objects[key] for key in expected)
    left_out = [each.what for each in done.manifest.left_out]
    assert left_out == [f"4 chunks of {RUN_ID}", "rows of data"]


def test_with_chunks_every_checkpoint_is_whole(
    whole: Story, tracks: Tracks, store: FakeObjectStore
) -> None:
    members, done = exported(tracks, with_chunks=True)
    assert keys_of(members) == {key for key in store.objects if "/shards/" not in key}
    assert done.manifest.chunks_of == (RUN_ID,)


def test_the_manifest_names_every_other_member_by_its_sha256(whole: Story, tracks: Tracks) -> None:
    members, done = exported(tracks)
    result = json.loads(members.pop(MANIFEST))
    assert result["members"] == {name: sha256_hex(data) for name, data in members.items()}
    assert next(iter(members)) == README
    assert RUN_ID in members[README].decode()
    assert result["head_seqs"][f"runs/{RUN_ID}"] == len(whole.history.records) - 1
    assert done.member_count == len(members) + 1


def test_the_same_records_make_the_same_members_in_the_same_order(
    whole: Story, tracks: Tracks
) -> None:
    first, second = exported(tracks)[0], exported(tracks)[0]
    assert list(first.items()) == list(second.items())


def test_a_branch_brings_the_runs_that_it_descends_from(
    tracks: Tracks, store: FakeObjectStore
) -> None:
    source = History("r-1").declare().open().place().restore().commit(20)
    source.end("completed", last_step=20)
    branch = History("b-1").declare(branched_from=source.state.checkpoints[0].ref)
    branch.open().place().restore().commit(30)
    other = History("other").declare()
    for history in (source, branch, other, DatasetHistory().declare()):
        history.write_to(store)
    members, done = exported(tracks, "b-1")
    assert done.manifest.run_ids == ("b-1", "r-1")
    assert not any(key.startswith("runs/other/") for key in keys_of(members))
    assert log_key("runs/r-1", 0) in keys_of(members)


def test_pools_and_quarantines_come_along_while_they_are_small(
    whole: Story, tracks: Tracks, store: FakeObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = pool_track(pool_of(whole.history.state.declared.compute))
    for name in (pool, pool_track("unused"), QUARANTINES_TRACK):
        store.put(log_key(name, 0), b"{}" * 50)
    keys = keys_of(exported(tracks)[0])
    assert log_key(pool, 0) in keys
    assert log_key(QUARANTINES_TRACK, 0) in keys
    assert log_key(pool_track("unused"), 0) not in keys
    monkeypatch.setattr(exporting, "SHARED_TRACK_BYTES_MAX", 99)
    members, done = exported(tracks)
    assert log_key(QUARANTINES_TRACK, 0) not in keys_of(members)
    assert QUARANTINES_TRACK in [each.what for each in done.manifest.left_out]


def test_an_object_with_a_secret_is_left_out_and_named_and_a_record_stops_the_export(
    whole: Story, tracks: Tracks, store: FakeObjectStore
) -> None:
    key = f"runs/{RUN_ID}/attempts/1/early/u/exit.json"
    store.put(key, f'{{"message": "password {SECRET}"}}'.encode())
    members, done = exported(tracks)
    assert key not in keys_of(members)
    assert not any(SECRET.encode() in data for data in members.values())
    assert key in [each.what for each in done.manifest.left_out]
    whole.history.note(f"postgresql://ann:{SECRET}@db").write_to(store)
    with pytest.raises(InvalidInput, match=r"log/0000000000\d\d\.json holds what looks like"):
        exported(tracks)


def test_records_that_come_while_it_is_exported_are_not_in_it(
    whole: Story, tracks: Tracks, store: FakeObjectStore
) -> None:
    last = len(whole.history.records) - 1
    tracks.run(RUN_ID)
    members: dict[str, bytes] = {}

    def add(name: str, data: bytes) -> None:
        if not members:  # the README: the plan is made, nothing else is read yet
            whole.history.note("later").write_to(store)
        members[name] = data

    export_run(tracks, RUN_ID, add, with_chunks=False, redact=redact, version="1.0")
    logs = [key for key in keys_of(members) if key.startswith(f"runs/{RUN_ID}/log/")]
    assert max(logs) == log_key(f"runs/{RUN_ID}", last)


def test_a_lost_record_is_named_and_those_behind_it_are_in_the_archive(
    whole: Story, tracks: Tracks, store: FakeObjectStore
) -> None:
    track, last = run_track(RUN_ID), len(whole.history.records) - 1
    del store.objects[log_key(track, last - 2)]
    members, done = exported(tracks)
    assert {log_key(track, last - 1), log_key(track, last)} <= keys_of(members)
    left_out = {each.what: each.why for each in done.manifest.left_out}
    assert "It is lost, though later ones are there" in left_out[log_key(track, last - 2)]
    assert done.manifest.head_seqs[track] == last


def test_a_lost_record_of_a_shared_track_is_named(
    whole: Story, tracks: Tracks, store: FakeObjectStore
) -> None:
    dataset = dataset_track(whole.snapshot.dataset)
    pool = pool_track(pool_of(whole.history.state.declared.compute))
    del store.objects[log_key(dataset, 1)]
    there = [
        log_key(dataset, 2),
        *(log_key(pool, seq) for seq in (0, 1, 3, 4)),
        log_key(QUARANTINES_TRACK, 1),
    ]
    for key in there:
        store.put(key, b"{}")
    members, done = exported(tracks)
    lost = [each.what for each in done.manifest.left_out if "It is lost" in each.why]
    assert lost == [log_key(dataset, 1), log_key(pool, 2), log_key(QUARANTINES_TRACK, 0)]
    assert set(there) <= keys_of(members)
    assert [done.manifest.head_seqs[track] for track in (dataset, pool)] == [2, 4]


def test_a_run_that_is_not_there_is_not_exported(whole: Story, tracks: Tracks) -> None:
    with pytest.raises(UnknownRun, match=f"did you mean {RUN_ID}"):
        exported(tracks, RUN_ID[:-1])


def test_a_run_whose_track_does_not_hold_is_exported_as_it_is(
    whole: Story, tracks: Tracks, store: FakeObjectStore
) -> None:
    track, dataset = run_track(RUN_ID), dataset_track(whole.snapshot.dataset)
    last = len(whole.history.records) - 1
    for key, edited in ((log_key(track, 5), b"{"), (log_key(dataset, 1), b"[]")):
        store.put(key, edited)
    members, done = exported(tracks)
    assert members[f"store/{log_key(track, 5)}"] == b"{"
    assert log_key(track, last) in keys_of(members)
    assert log_key(dataset, 1) in keys_of(members)
    assert done.manifest.head_seqs[track] == last
    assert done.broken is not None
    assert (done.broken.seq, done.broken.is_newer) == (5, False)


def test_a_branch_of_a_run_that_cannot_be_read_is_exported(
    tracks: Tracks, store: FakeObjectStore
) -> None:
    source = History("r-1").declare().open().place().restore().commit(20)
    branch = History("b-1").declare(branched_from=source.state.checkpoints[0].ref)
    for history in (branch, DatasetHistory().declare()):
        history.write_to(store)
    store.put(log_key("runs/r-1", 0), b"{")
    assert exported(tracks, "b-1")[1].manifest.run_ids == ("b-1",)
