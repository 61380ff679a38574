"""Snapshots are checked, stored, then committed by one record; found by id or as the newest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fakes import FakeClock, FakeObjectStore, Fault, SequentialUids
from tests.histories import DatasetHistory
from tracks_dagster.data.effects.datasets.catalog import ShippedDatasets
from tracks_dagster.data.effects.snapshots import find_snapshot, make_snapshot
from tracks_dagster.data.ports import Datasets
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.track.bodies import SnapshotDecision, SnapshotRef
from tracks_dagster.track.errors import DataRejected, InvalidInput, StoreUnavailable, UnknownRun
from tracks_dagster.track.records import Kind, sha256_hex
from tracks_dagster.training.data import load_snapshot


@pytest.fixture
def datasets(tmp_path: Path) -> Datasets:
    return ShippedDatasets(tmp_path / "work")


def text(folder: Path, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, words in files.items():
        (folder / f"{name}.txt").write_text(words)
    return folder


def test_a_snapshot_is_committed_after_its_bytes_are_stored(
    tracks: Tracks, datasets: Datasets, store: FakeObjectStore, tmp_path: Path
) -> None:
    made = make_snapshot(tracks, datasets, "aws-docs", source=text(tmp_path / "in", a="A", b="B"))
    writes = [key for method, key in store.calls if method in ("put", "create")]
    assert [key.split("/")[2] for key in writes] == ["shards", "manifests", "log", "log"]
    stored = store.get(made.manifest_key)
    assert stored is not None
    assert sha256_hex(stored) == made.snapshot_id
    manifest = json.loads(stored)
    assert manifest["row_count"] == made.row_count == 2
    assert manifest["columns"][0] == {"name": "document", "type": "VARCHAR"}
    assert sum(shard["bytes"] for shard in manifest["shards"]) == made.total_bytes
    assert made.source == "own text: in"
    assert any(check.startswith("text: ") for check in made.checks)


def test_what_was_stored_is_what_training_loads(
    tracks: Tracks, datasets: Datasets, store: FakeObjectStore, tmp_path: Path
) -> None:
    make_snapshot(tracks, datasets, "aws-docs", source=text(tmp_path / "in", b="B", a="A"))
    table = load_snapshot(store, find_snapshot(tracks, "aws-docs"))
    assert table.to_pydict() == {"document": ["a.txt", "b.txt"], "text": ["A", "B"]}


def test_the_same_data_again_finds_the_snapshot_and_writes_no_second_record(
    tracks: Tracks, datasets: Datasets, tmp_path: Path
) -> None:
    source = text(tmp_path / "in", a="A")
    one = make_snapshot(tracks, datasets, "aws-docs", source=source, dagster_run_id="first")
    count = len(tracks.records("datasets/aws-docs"))
    two = make_snapshot(tracks, datasets, "aws-docs", source=source, dagster_run_id="second")
    assert two == one
    assert two.dagster_run_id == "first"
    assert len(tracks.records("datasets/aws-docs")) == count == 2


def test_a_snapshot_made_again_restores_bytes_that_the_store_lost(
    tracks: Tracks, datasets: Datasets, store: FakeObjectStore, tmp_path: Path
) -> None:
    source = text(tmp_path / "in", a="A")
    make_snapshot(tracks, datasets, "aws-docs", source=source)
    store.delete(next(store.list("datasets/aws-docs/shards/")))
    make_snapshot(tracks, datasets, "aws-docs", source=source)
    assert load_snapshot(store, find_snapshot(tracks, "aws-docs")).num_rows == 1


def test_the_newest_snapshot_is_found_and_older_ones_by_a_prefix_of_their_id(
    tracks: Tracks, datasets: Datasets, tmp_path: Path
) -> None:
    source = text(tmp_path / "in", a="A")
    old = make_snapshot(tracks, datasets, "aws-docs", source=source)
    new = make_snapshot(tracks, datasets, "aws-docs", source=text(source, a="changed"))
    assert new.snapshot_id != old.snapshot_id
    assert find_snapshot(tracks, "aws-docs").snapshot_id == new.snapshot_id
    found = find_snapshot(tracks, "aws-docs", old.snapshot_id[:8])
    assert found == SnapshotRef(dataset="aws-docs", snapshot_id=old.snapshot_id)


def test_bad_data_writes_nothing(
    tracks: Tracks, datasets: Datasets, store: FakeObjectStore, tmp_path: Path
) -> None:
    source = text(tmp_path / "in", a="\x00")
    with pytest.raises(DataRejected, match="row 1, text"):
        make_snapshot(tracks, datasets, "aws-docs", source=source)
    assert store.objects == {}


def test_a_store_that_fails_on_the_way_leaves_no_snapshot(
    tracks: Tracks, datasets: Datasets, store: FakeObjectStore, tmp_path: Path
) -> None:
    source = text(tmp_path / "in", a="A")
    store.fail("put", 2, Fault.FAILS)  # the manifest
    with pytest.raises(StoreUnavailable):
        make_snapshot(tracks, datasets, "aws-docs", source=source)
    with pytest.raises(UnknownRun):
        find_snapshot(tracks, "aws-docs")
    assert make_snapshot(tracks, datasets, "aws-docs", source=source).row_count == 1


def test_two_makers_of_the_same_data_commit_one_snapshot(
    datasets: Datasets, store: FakeObjectStore, clock: FakeClock, tmp_path: Path
) -> None:
    source = text(tmp_path / "in", a="A")
    uids = SequentialUids()
    one, two = (
        Tracks(store, now=clock, new_uid=uids, project=lambda track: None) for _ in range(2)
    )
    one.find_dataset("aws-docs")
    two.find_dataset("aws-docs")  # both have seen an empty track
    made = [make_snapshot(t, datasets, "aws-docs", source=source) for t in (one, two)]
    assert made[0] == made[1]
    kinds = [record.kind for record in one.records("datasets/aws-docs")]
    assert kinds == [Kind.DATASET_DECLARED, Kind.SNAPSHOT_COMMITTED]


def test_a_quarantined_snapshot_is_refused_with_the_reason(
    tracks: Tracks, datasets: Datasets, store: FakeObjectStore, tmp_path: Path
) -> None:
    history = DatasetHistory().declare().commit("a" * 64).commit("b" * 64)
    history.decide(Kind.SNAPSHOT_QUARANTINED, "b" * 64).write_to(store)
    assert find_snapshot(tracks, "aws-docs").snapshot_id == "a" * 64
    with pytest.raises(
        InvalidInput, match=r"is quarantined \(bad rows\).*release snapshot:aws-docs@b{12} "
    ):
        find_snapshot(tracks, "aws-docs", "b" * 64)
    history.decide(Kind.SNAPSHOT_QUARANTINED, "a" * 64).write_to(store)
    with pytest.raises(
        InvalidInput, match=r"the newest, b{12}.*`tracks release snapshot:aws-docs@b{12} "
    ):
        find_snapshot(tracks, "aws-docs")


def test_data_that_was_quarantined_is_refused_when_it_comes_again(
    tracks: Tracks, datasets: Datasets, tmp_path: Path
) -> None:
    source = text(tmp_path / "in", a="A")
    made = make_snapshot(tracks, datasets, "aws-docs", source=source)
    decision = SnapshotDecision(snapshot_id=made.snapshot_id, by="ann", why="the labels are wrong")
    tracks.decide_dataset(
        "aws-docs", lambda state: tracks.draft(Kind.SNAPSHOT_QUARANTINED, decision)
    )
    with pytest.raises(DataRejected, match="is quarantined: the labels are wrong"):
        make_snapshot(tracks, datasets, "aws-docs", source=source)


@pytest.mark.parametrize(
    ("snapshot_id", "error", "said"),
    [
        ("cccccc", UnknownRun, "There is no snapshot 'cccccc' of dataset aws-docs; the newest are"),
        ("aaaaaa", InvalidInput, "begins 2 snapshot ids"),
        ("aaa", InvalidInput, "too short"),
        ("", InvalidInput, "too short"),
    ],
)
def test_a_snapshot_that_is_not_there_or_not_clear_is_refused(
    tracks: Tracks,
    store: FakeObjectStore,
    snapshot_id: str,
    error: type[InvalidInput],
    said: str,
) -> None:
    history = DatasetHistory().declare().commit("a" * 64).commit("a" * 63 + "b")
    history.write_to(store)
    with pytest.raises(error, match=said):
        find_snapshot(tracks, "aws-docs", snapshot_id)


def test_a_dataset_without_a_snapshot_says_how_to_make_one(tracks: Tracks) -> None:
    with pytest.raises(UnknownRun, match="is made by the asset 'aws_docs_heldout'"):
        find_snapshot(tracks, "aws-docs-heldout")


def test_a_manifest_that_nobody_could_read_is_not_stored(
    tracks: Tracks,
    datasets: Datasets,
    store: FakeObjectStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tracks_dagster.data.effects.snapshots.SNAPSHOT_BYTES_MAX", 100)
    with pytest.raises(InvalidInput, match="at most 100 are read"):
        make_snapshot(tracks, datasets, "aws-docs", source=text(tmp_path / "in", a="A"))
    assert not any("/manifests/" in key for _, key in store.calls)
