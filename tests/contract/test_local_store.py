"""What only a folder can get wrong: processes, killed writers, full disks, permissions."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from tracks_dagster.adapters.stores import open_store
from tracks_dagster.adapters.stores.local import PARTIAL_FOLDER
from tracks_dagster.core.errors import SettingsError, StoreUnavailable, StoreUnsuitable

PROCESSES = 4
RACES = 20
NOBODY = 65534


def race(url: str, barrier: Barrier, results: multiprocessing.Queue[list[int]]) -> None:
    store = open_store(url, probe=False)
    mine = f"{os.getpid()}".encode()
    won = []
    for number in range(RACES):
        barrier.wait(timeout=60)
        if store.create(f"race/{number}/key", mine):
            won.append(number)
        assert store.get(f"race/{number}/key") is not None
    results.put(won)


def test_of_four_processes_that_create_one_key_exactly_one_wins(tmp_path: Path) -> None:
    url = open_store(str(tmp_path / "store")).url
    spawn = multiprocessing.get_context("spawn")
    barrier, results = spawn.Barrier(PROCESSES), spawn.Queue()
    racers = [spawn.Process(target=race, args=(url, barrier, results)) for _ in range(PROCESSES)]
    for racer in racers:
        racer.start()
    won = sorted(number for _ in racers for number in results.get(timeout=120))
    for racer in racers:
        racer.join(timeout=60)
    assert [racer.exitcode for racer in racers] == [0] * PROCESSES
    assert won == list(range(RACES))


WRITER = """
import sys
from tracks_dagster.adapters.stores import open_store
store = open_store(sys.argv[1], probe=False)
for number in range(1_000_000):
    store.put("key", bytes([number % 256]) * 1_000_000)
    store.create(f"created/{number}", bytes([number % 256]) * 1_000_000)
    print(number, flush=True)
"""


def test_a_writer_killed_anywhere_leaves_only_whole_objects(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    for kill in range(5):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, store.url], stdout=subprocess.PIPE, text=True
        )
        with writer:
            assert writer.stdout is not None
            for _ in range(kill + 1):
                writer.stdout.readline()
            writer.send_signal(signal.SIGKILL)
        for key in store.list(""):
            data = store.get(key)
            assert data is not None
            assert key == "format.json" or data == data[:1] * 1_000_000


def test_what_an_interrupted_writer_left_is_no_object(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    (tmp_path / "store" / PARTIAL_FOLDER / "0123").write_bytes(b"half of")
    (tmp_path / "store" / "~notes").write_text("a person's")
    store.put("key", b"1")
    assert list(store.list("")) == ["format.json", "key"]
    assert [p.name for p in (tmp_path / "store" / PARTIAL_FOLDER).iterdir()] == ["0123"]


@pytest.fixture
def read_only_folder() -> Iterator[Path]:
    """A folder that the effective user may read only; root, who may do all, becomes nobody."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o555)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    yield folder
    if is_root:
        os.seteuid(0)
    folder.chmod(0o755)
    shutil.rmtree(folder)


def test_a_read_only_folder_is_refused_with_its_path_and_what_to_do(read_only_folder: Path) -> None:
    with pytest.raises(StoreUnavailable, match=f"{read_only_folder}.*permissions"):
        open_store(str(read_only_folder))
    with pytest.raises(StoreUnavailable, match=f"make the folder {read_only_folder}/deep/er"):
        open_store(str(read_only_folder / "deep" / "er"))


@pytest.mark.parametrize(
    ("number", "words"), [(errno.ENOSPC, "disk is full"), (errno.EROFS, "read-only"), (5, "I/O")]
)
def test_a_disk_that_takes_no_more_is_a_store_unavailable_and_leaves_no_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    store = open_store(str(tmp_path / "store"))

    def fsync(descriptor: int) -> None:
        raise OSError(number, os.strerror(number).replace("Input/output", "I/O"))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(StoreUnavailable, match=f"create key in {tmp_path}.*{words}"):
            store.create("key", b"1")
        with pytest.raises(StoreUnavailable, match=f"write key in {tmp_path}.*{words}"):
            store.put("key", b"1")
    assert list(store.list("")) == ["format.json"]
    assert list((tmp_path / "store" / PARTIAL_FOLDER).iterdir()) == []


def test_a_file_system_without_hard_links_is_unsuitable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(StoreUnsuitable, match="cannot make hard links"):
        open_store(str(tmp_path / "store"))


def test_a_store_that_was_removed_is_unavailable_and_not_empty(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    with pytest.raises(StoreUnavailable, match="moved, removed or unmounted"):
        store.get("runs/r/log/0")
    with pytest.raises(StoreUnavailable, match="moved, removed or unmounted"):
        list(store.list("runs/"))
    with pytest.raises(StoreUnavailable, match="moved, removed or unmounted"):
        store.create("runs/r/log/0", b"1")


def test_every_folder_on_the_way_to_an_object_is_synced_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(tmp_path / "store"))
    synced: list[str] = []
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("this system does not tell the path of an open file (/proc is missing)")

    def fsync(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))

    monkeypatch.setattr(os, "fsync", fsync)
    store.create("a/b/key", b"1")
    root = str(tmp_path / "store")
    assert synced[0].startswith(f"{root}/{PARTIAL_FOLDER}/")
    assert synced[1:] == [root, f"{root}/a", f"{root}/a/b"]
    synced.clear()
    store.create("a/b/other", b"1")
    assert synced[1:] == [f"{root}/a/b"]


def test_addresses_that_name_no_store_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="gs:// is no kind of object store"):
        open_store("gs://bucket/prefix")
    with pytest.raises(SettingsError, match="names no folder"):
        open_store("file://somewhere/else")
    with pytest.raises(SettingsError, match="names no folder"):
        open_store("")
    with pytest.raises(SettingsError, match="names no bucket"):
        open_store("s3:///prefix")
    with pytest.raises(SettingsError, match="holds no credentials") as refusal:
        open_store("s3://KEY:geheim@bucket/prefix")
    assert "geheim" not in str(refusal.value)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match="a file stands where a folder has to be"):
        open_store(str(tmp_path / "file"))


def test_a_path_and_its_file_url_are_one_store(tmp_path: Path) -> None:
    folder = tmp_path / "my store"
    open_store(str(folder)).put("key", b"1")
    url = "file://" + str(folder).replace(" ", "%20")
    assert open_store(url, probe=False).get("key") == b"1"
    assert open_store(url, probe=False).url == str(folder)
