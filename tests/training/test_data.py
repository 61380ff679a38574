"""`a.data()`: the files of the run's snapshot, verified, as a local folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.training.gangs import TrainingRun
from tracks_dagster.data.effects.freezing import freeze, list_files
from tracks_dagster.stores.hashes import Hashes
from tracks_dagster.stores.sources import open_source
from tracks_dagster.track.bodies import SnapshotRef
from tracks_dagster.track.errors import DataRejected, InvalidInput
from tracks_dagster.track.records import sha256_hex
from tracks_dagster.track.states.dataset_state import manifest_key


@pytest.fixture
def run(tmp_path: Path) -> TrainingRun:
    return TrainingRun(tmp_path / "run")


def freeze_for(run: TrainingRun, folder: Path, *, in_place: bool) -> None:
    folder.mkdir()
    (folder / "train.bin").write_bytes(b"tokens")
    source = open_source(str(folder))
    hashes = Hashes(None, source.url)
    frozen = freeze(source, list_files(source), run.store, "mine", in_place=in_place, hashes=hashes)
    data = frozen.manifest.to_bytes()
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
