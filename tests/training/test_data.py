"""`a.data()`, and what an eval gets: the files of a snapshot, verified, as a local folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import parquet

from tests.training.gangs import TrainingRun
from tracks_dagster.data.effects.freezing import freeze, list_files
from tracks_dagster.stores.hashes import Hashes
from tracks_dagster.stores.sources import open_source
from tracks_dagster.track.bodies import SnapshotRef
from tracks_dagster.track.errors import DataRejected, InvalidInput
from tracks_dagster.track.records import sha256_hex
from tracks_dagster.track.states.dataset_state import manifest_key
from tracks_dagster.training.data import data_folder, load_snapshot


@pytest.fixture
def run(tmp_path: Path) -> TrainingRun:
    return TrainingRun(tmp_path / "run")


def freeze_for(run: TrainingRun, folder: Path, *, in_place: bool) -> None:
    folder.mkdir()
    (folder / "train.bin").write_bytes(b"tokens")
    source = open_source(str(folder))
    hashes = Hashes(None, source.url)
    frozen = freeze(source, list_files(source), run.store, "mine", in_place=in_place, hashes=hashes)
    data = frozen.manifest.data
    snapshot = SnapshotRef(dataset="mine", snapshot_id=sha256_hex(data))
    run.store.put(manifest_key("mine", snapshot.snapshot_id), data)
    run.declared = replace(run.declared, snapshot=snapshot)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_script_gets_a_folder_with_the_files_of_its_snapshot(
    run: TrainingRun, tmp_path: Path, in_place: bool
) -> None:
    freeze_for(run, tmp_path / "in", in_place=in_place)
    with run.joined() as a:
        folder = a.data()
        assert (folder / "train.bin").read_bytes() == b"tokens"
        assert (folder == tmp_path / "in") is in_place
        with pytest.raises(InvalidInput, match=r"a dataset of files.*a\.data\(\)"):
            a.snapshot()


def test_changed_files_in_place_end_the_attempt_by_their_names(
    run: TrainingRun, tmp_path: Path
) -> None:
    freeze_for(run, tmp_path / "in", in_place=True)
    (tmp_path / "in" / "train.bin").write_bytes(b"poison")
    with run.joined() as a, pytest.raises(DataRejected, match=r"1 files of .*train\.bin"):
        a.data()


def test_a_run_without_files_says_so(run: TrainingRun) -> None:
    with run.joined() as a, pytest.raises(InvalidInput, match=r"of rows.*a\.snapshot\(\)"):
        a.data()
    run.declared = replace(run.declared, snapshot=None)
    with run.joined() as a, pytest.raises(InvalidInput, match="No snapshot was named"):
        a.data()


def test_an_eval_gets_the_rows_of_a_snapshot_as_files(run: TrainingRun, tmp_path: Path) -> None:
    snapshot = run.declared.snapshot
    assert snapshot is not None
    folder = data_folder(run.store, snapshot, cache=tmp_path / "cache", folder=tmp_path / "data")
    assert folder == tmp_path / "data"
    assert [path.name for path in folder.iterdir()] == ["part-00000.parquet"]
    found = parquet.read_table(folder)  # type: ignore[no-untyped-call]
    assert found.equals(load_snapshot(run.store, snapshot))
    shard = next(key for key in run.store.list("datasets/") if key.endswith(".parquet"))
    run.store.put(shard, b"poison")
    with pytest.raises(DataRejected, match=shard):
        data_folder(run.store, snapshot, cache=tmp_path / "cache", folder=tmp_path / "again")


def test_an_eval_gets_the_machines_copy_of_a_snapshot_of_files(
    run: TrainingRun, tmp_path: Path
) -> None:
    freeze_for(run, tmp_path / "in", in_place=False)
    assert run.declared.snapshot is not None
    cache = tmp_path / "cache"
    folder = data_folder(
        run.store, run.declared.snapshot, cache=cache, folder=tmp_path / "never made"
    )
    assert folder.is_relative_to(cache)
    assert (folder / "train.bin").read_bytes() == b"tokens"
