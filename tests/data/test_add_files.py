"""`tracks snapshots add`: files of one's own become a snapshot, after checks of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes import FakeObjectStore
from tracks_dagster.data.effects.datasets.catalog import ShippedDatasets
from tracks_dagster.data.effects.own_checks import read_checks
from tracks_dagster.data.effects.snapshots import Added, add_files, find_snapshot
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.recovery.effects.fsck_objects import check_snapshots
from tracks_dagster.track.errors import DataRejected, InvalidInput
from tracks_dagster.track.records import Kind

CHECKS = """
from subprocess import check_output  # none of ours
import pandera.polars as pa

SCHEMAS = {"*.csv": pa.DataFrameSchema({"age": pa.Column(int, pa.Check.ge(0))})}

def check_names(folder):
    assert (folder / "people.csv").exists()

def check_size(folder):
    if (folder / "big").exists():
        return "big is too big"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "in"
    root.mkdir()
    (root / "people.csv").write_text("name,age\na,1\nb,2\n")
    return root


@pytest.fixture
def checks(tmp_path: Path) -> Path:
    path = tmp_path / "my_checks.py"
    path.write_text(CHECKS)
    return path


def add(tracks: Tracks, folder: Path, name: str = "mine", checks: Path | None = None) -> Added:
    work = folder.parent / "home"
    return add_files(
        tracks,
        ShippedDatasets(work),
        name,
        str(folder),
        in_place=False,
        cache=work / "cache",
        checks=None if checks is None else read_checks(checks),
    )


def test_a_snapshot_of_files_is_recorded_once_with_what_it_passed(
    tracks: Tracks, store: FakeObjectStore, folder: Path, checks: Path
) -> None:
    added = add(tracks, folder, checks=checks)
    assert added.is_new
    assert added.body.checks == ("SCHEMAS *.csv", "check_names", "check_size")
    assert (added.body.file_count, added.body.row_count, added.body.in_place) == (1, None, None)
    assert added.body.total_bytes == added.written_bytes == 17
    assert store.get(f"datasets/mine/checks/{added.body.checks_sha256}.py") == CHECKS.encode()
    assert find_snapshot(tracks, "mine").snapshot_id == added.body.snapshot_id
    again = add(tracks, folder, checks=checks)
    assert (again.is_new, again.written_bytes, again.body) == (False, 0, added.body)
    assert (added.passed, add(tracks, folder).passed) == (added.body.checks, ())
    kinds = [record.kind for record in tracks.records("datasets/mine")]
    assert kinds == [Kind.DATASET_DECLARED, Kind.SNAPSHOT_COMMITTED]


MODEL = """
import pandera.polars as pa

class People(pa.DataFrameModel):
    name: str
    age: int = pa.Field(ge=2)

SCHEMAS = {"*.csv": People, "*.parquet": People}
"""


def test_a_model_is_a_schema_too_and_a_pattern_without_a_file_fails(
    tracks: Tracks, folder: Path, checks: Path
) -> None:
    checks.write_text(MODEL)
    with pytest.raises(DataRejected) as refused:
        add(tracks, folder, checks=checks)
    assert "row 1, people.csv age" in str(refused.value)
    assert "SCHEMAS *.parquet: no file is named *.parquet" in str(refused.value)


def test_checks_that_fail_are_all_named_and_nothing_is_written(
    tracks: Tracks, store: FakeObjectStore, folder: Path, checks: Path
) -> None:
    (folder / "big").touch()
    (folder / "people.csv").write_text("name,age\na,-1\n")
    with pytest.raises(DataRejected) as refused:
        add(tracks, folder, checks=checks)
    assert "2 of 3 checks of my_checks.py failed" in str(refused.value)
    assert "check_size: big is too big" in str(refused.value)
    assert refused.value.bad_rows[0].value == "-1"
    assert store.objects == {}


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("x = ", "not Python"),
        ("import nothing_there", "cannot be loaded: ModuleNotFoundError"),
        ("x = 1", "holds 0 checks"),
        ("SCHEMAS = 3", "SCHEMAS in .* is a int"),
        ("SCHEMAS = {'*': 3}", "no pandera schema"),
    ],
)
def test_a_file_that_holds_no_checks_is_refused(
    tracks: Tracks, folder: Path, checks: Path, source: str, says: str
) -> None:
    checks.write_text(source)
    with pytest.raises(InvalidInput, match=says):
        add(tracks, folder, checks=checks)


@pytest.mark.parametrize("name", ["aws-docs", "Mine", "-mine", "a/b", ""])
def test_a_name_that_cannot_be_a_dataset_is_refused(
    tracks: Tracks, folder: Path, name: str
) -> None:
    with pytest.raises(InvalidInput, match=r"ships|cannot be a dataset's name"):
        add(tracks, folder, name)


def test_fsck_reads_every_part_of_a_snapshot_of_files(
    tracks: Tracks, store: FakeObjectStore, folder: Path
) -> None:
    add(tracks, folder)
    state = tracks.find_dataset("mine")
    assert state is not None
    assert list(check_snapshots(store, state)) == []
    [key] = store.list("datasets/mine/shards/")
    store.put(key, b"x" * 17)
    [finding] = check_snapshots(store, state)
    assert finding.where == key
    assert "other bytes than the manifest names, of people.csv" in finding.meaning
    store.delete(key)
    [finding] = check_snapshots(store, state)
    assert "is missing" in finding.meaning


def test_a_folder_that_holds_our_own_home_is_refused(tracks: Tracks, folder: Path) -> None:
    with pytest.raises(InvalidInput, match=r"holds .*home/cache, which tracks itself writes to"):
        add_files(
            tracks,
            ShippedDatasets(folder),
            "mine",
            str(folder),
            in_place=False,
            cache=folder / "home" / "cache",
        )


def test_one_file_is_copied_and_never_taken_in_place(
    tracks: Tracks, folder: Path, checks: Path
) -> None:
    (folder / "beside").touch()
    assert add(tracks, folder / "people.csv").body.file_count == 1
    with pytest.raises(InvalidInput, match="name the one that holds"):
        add(tracks, folder / "people.csv", checks=checks)
    with pytest.raises(InvalidInput, match="is one file"):
        add_files(
            tracks,
            ShippedDatasets(folder),
            "mine",
            str(folder / "people.csv"),
            in_place=True,
            cache=folder.parent,
        )
