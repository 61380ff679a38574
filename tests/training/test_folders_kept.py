"""What becomes of a folder's checkpoint once it is committed: all that becomes of one of tensors."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.fakes import FakeObjectStore
from tests.training.gangs import TrainingRun
from tracks_dagster.checkpoints.effects.pins import pin, pin_of_person
from tracks_dagster.checkpoints.effects.retention import collect
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.stores import open_store
from tracks_dagster.track.bodies import RetentionRule
from tracks_dagster.track.errors import Fenced
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.training.saves.folders import fetch_folder
from tracks_dagster.training.saves.manifest import StoredCheckpoints, verify_checkpoint

MB = 1024 * 1024


def written(folder: Path, step: int) -> Path:
    """A folder of two chunks, of which every step changes one."""
    folder.mkdir(exist_ok=True)
    (folder / "frozen.bin").write_bytes(b"f" * (5 * MB))
    (folder / "trained.bin").write_bytes(b"%d" % step * (5 * MB))
    return folder


def train(run: TrainingRun, folder: Path, *steps: int) -> Path | None:
    """Commit a folder of each step; return what was resumed from."""
    with run.joined() as a:
        found = a.folder()
        for step in steps:
            a.ends(step)
            assert a.commit_folder(step, written(folder, step))
    return found


def tracks_of(store: ObjectStore) -> Tracks:
    return Tracks(
        store,
        now=lambda: datetime.now(UTC),
        new_uid=lambda: uuid.uuid4().hex,
        project=lambda name: None,
    )


def refs(run: TrainingRun) -> dict[int, CheckpointRef]:
    return {each.ref.step: each.ref for each in run.state.checkpoints}


def test_retention_lets_go_of_the_bytes_that_no_kept_folder_shares(
    tmp_path: Path, store: FakeObjectStore
) -> None:
    rule = RetentionRule(keep_last=1, keep_best=0, delete_after_s=0.0)
    run = TrainingRun(tmp_path, store=store, retention=rule)
    train(run, tmp_path / "f", 1, 2, 3)
    tracks, found = tracks_of(store), refs(run)
    pin(tracks, found[2], holder=pin_of_person("ann"), by="ann", why="for a paper")
    done = collect(tracks, StoredCheckpoints(store), "r", by="tests")
    assert [each.ref.step for each in done.deleted] == [1]
    assert 5 * MB <= done.freed_bytes < 6 * MB  # what steps 2 and 3 share with it stays
    for step in (2, 3):
        assert verify_checkpoint(store, found[step]) == 10 * MB


def test_a_branch_resumes_from_a_folder_and_stands_on_bytes_of_its_own(
    tmp_path: Path, store: FakeObjectStore
) -> None:
    source = TrainingRun(tmp_path, store=store)
    train(source, tmp_path / "f", 1)
    ref = source.final()
    branch = TrainingRun(tmp_path, store=store, run_id="b", branched_from=ref)
    resumed = train(branch, tmp_path / "f", 2)
    assert resumed is not None
    assert (resumed / "trained.bin").read_bytes() == b"1" * (5 * MB)
    (commit,) = branch.state.checkpoints
    assert commit.body.written_bytes == 10 * MB
    chunks = branch.manifest_of(commit.ref).chunks
    assert all(chunk.key.startswith("runs/b/") for chunk in chunks)


def test_a_launch_that_lost_its_attempt_commits_no_folder(
    tmp_path: Path, store: FakeObjectStore
) -> None:
    run = TrainingRun(tmp_path, store=store)
    with run.joined() as a:
        a.folder()
        a.ends(1)
        run.open()  # ends attempt 1
        with pytest.raises(Fenced):
            a.commit_folder(1, written(tmp_path / "f", 1))
    assert run.state.checkpoints == ()


class FilmedStore(FakeObjectStore):
    """Keeps what it held after each write: what a launch that is killed then leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.film: list[dict[str, bytes]] = []

    def create(self, key: str, data: bytes | memoryview) -> bool:
        created = super().create(key, data)
        self.film.append(dict(self.objects))
        return created

    def put(self, key: str, data: bytes | memoryview) -> None:
        super().put(key, data)
        self.film.append(dict(self.objects))


def test_a_launch_killed_at_any_write_leaves_one_whole_folder_or_the_other(tmp_path: Path) -> None:
    store = FilmedStore()
    run = TrainingRun(tmp_path, store=store)
    train(run, tmp_path / "f", 1)
    store.film.clear()
    train(run, tmp_path / "f", 2)
    left = []
    for number, objects in enumerate(store.film):
        store.objects = objects
        ref = run.final()
        found = fetch_folder(store, ref, tmp_path / f"{number}").path
        assert (found / "trained.bin").read_bytes() == b"%d" % ref.step * (5 * MB)
        assert (found / "frozen.bin").read_bytes() == b"f" * (5 * MB)
        left.append(ref.step)
    assert left == sorted(left)
    assert set(left) == {1, 2}
    assert left.count(1) > 4  # opened, placed, restored, a chunk, the manifest


def test_a_folder_in_s3_comes_back(tmp_path: Path, s3_url: str) -> None:
    run = TrainingRun(tmp_path, store=open_store(s3_url))
    train(run, tmp_path / "f", 1)
    found = fetch_folder(run.store, run.final(), tmp_path / "read").path
    assert found.name == "f"
    for name in ("frozen.bin", "trained.bin"):
        assert (found / name).read_bytes() == (tmp_path / "f" / name).read_bytes()
