"""What only a folder can get wrong: processes, killed writers, full disks, permissions."""

from __future__ import annotations

import errno
import fcntl
import mmap
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path
from types import SimpleNamespace

import pytest

from tracks_dagster.stores import local, open_store
from tracks_dagster.stores.local import PARTIAL_FOLDER, LocalStore
from tracks_dagster.track.errors import SettingsError, StoreUnavailable, StoreUnsuitable

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


def test_a_listing_looks_into_no_folder_beside_its_prefix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(tmp_path / "store"))
    for key in ("runs/a/log/0", "runs/a/log/1", "runs/b/log/0", "runs/ab/log/0"):
        store.put(key, b"x")
    looked: list[str] = []
    scandir = os.scandir

    def counted(path: Path) -> Iterator[os.DirEntry[str]]:
        looked.append(str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", counted)
    assert list(store.list("runs/a/log/")) == ["runs/a/log/0", "runs/a/log/1"]
    assert looked == [str(tmp_path / "store" / "runs" / "a" / "log")]
    assert list(store.list("runs/a")) == ["runs/a/log/0", "runs/a/log/1", "runs/ab/log/0"]
    assert list(store.list("runs/../runs/a/")) == []
    assert list(store.list("/")) == []


@pytest.mark.parametrize("begin", [0, 1, 4096])
@pytest.mark.parametrize("more", [0, 1, 4095])
def test_memory_that_begins_at_a_page_is_stored_to_its_last_byte(
    tmp_path: Path, begin: int, more: int
) -> None:
    store = open_store(str(tmp_path / "store"))
    memory = mmap.mmap(-1, 8192 + local.DIRECT_BYTES_MIN, flags=mmap.MAP_PRIVATE)
    memory[:] = random.Random(begin + more).randbytes(len(memory))
    given = memoryview(memory)[begin : begin + local.DIRECT_BYTES_MIN + more]
    store.put("a/key", given)
    assert store.get("a/key") == bytes(given)


def test_what_the_file_system_will_not_write_past_the_cache_is_written_through_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(descriptor: int, command: int, flags: int = 0) -> int:
        if command == fcntl.F_SETFL and flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return fcntl.fcntl(descriptor, command, flags)

    monkeypatch.setattr(local, "fcntl", SimpleNamespace(**{**vars(fcntl), "fcntl": refused}))
    store = open_store(str(tmp_path / "store"))
    memory = mmap.mmap(-1, local.DIRECT_BYTES_MIN)
    memory[-1:] = b"x"
    store.put("a/key", memoryview(memory))
    assert store.get("a/key") == bytes(memory)


WRITER = """
import sys
from tracks_dagster.stores import open_store
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


def test_what_an_interrupted_writer_left_is_not_an_object(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    (tmp_path / "store" / PARTIAL_FOLDER / "0123").write_bytes(b"half of")
    (tmp_path / "store" / "~notes").write_text("a person's")
    store.put("key", b"1")
    assert list(store.list("")) == ["format.json", "key"]
    assert [p.name for p in (tmp_path / "store" / PARTIAL_FOLDER).iterdir()] == ["0123"]


def test_a_sweep_removes_old_leftovers_and_never_a_living_writers_file(tmp_path: Path) -> None:
    store, partial = open_store(str(tmp_path / "store")), tmp_path / "store" / PARTIAL_FOLDER
    for name, age_s in (("old", 3 * 3600), ("older", 4 * 3600), ("young", 1800)):
        (partial / name).write_bytes(b"half of")
        os.utime(partial / name, (time.time() - age_s,) * 2)
    (partial / "folder").mkdir()
    store.put("key", b"1")
    assert store.sweep() == 0  # nothing is older than a day
    assert store.sweep(older_than_s=2 * 3600) == 2
    assert store.sweep(older_than_s=2 * 3600) == 0
    assert sorted(path.name for path in partial.iterdir()) == ["folder", "young"]
    assert list(store.list("")) == ["format.json", "key"]


def test_a_sweep_where_nothing_was_ever_written_finds_nothing(tmp_path: Path) -> None:
    assert LocalStore(tmp_path).sweep(older_than_s=0) == 0


def test_a_writer_whose_file_was_swept_gets_an_error_and_leaves_no_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, replace = open_store(str(tmp_path / "store")), os.replace

    def replace_late(source: Path, target: Path) -> None:
        assert store.sweep(older_than_s=-60) == 1  # as if the writer had been stopped for days
        replace(source, target)

    monkeypatch.setattr(os, "replace", replace_late)
    with pytest.raises(StoreUnavailable, match="Cannot write key"):
        store.put("key", b"1")
    assert list(store.list("")) == ["format.json"]


@pytest.mark.parametrize("refused", [False, True])
def test_where_fsync_does_not_flush_the_drive_what_does_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    """macOS has F_FULLFSYNC for that, which some network file systems refuse."""
    store = open_store(str(tmp_path / "store"))
    calls: list[str] = []

    def fcntl(descriptor: int, command: int) -> None:
        calls.append(f"fcntl {command}")
        if refused:
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(local, "_FULL_SYNC", 51)
    monkeypatch.setattr(local.fcntl, "fcntl", fcntl)
    monkeypatch.setattr(os, "fsync", lambda descriptor: calls.append("fsync"))
    store.put("key", b"1")
    one = ["fcntl 51", "fsync"] if refused else ["fcntl 51"]
    assert calls == one * 2  # the file, and its folder


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
    ("number", "words"),
    [
        (errno.ENOSPC, "disk is full"),
        (errno.EDQUOT, "disk quota is used up"),
        (errno.EROFS, "read-only"),
        (errno.ESTALE, "mount it again"),
        (5, "I/O"),
    ],
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
    open_store(str(tmp_path / "store"))
    store = LocalStore(tmp_path / "store")  # which has read nothing yet
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


def test_what_was_read_is_synced_before_anything_is_created_or_deleted_on_its_strength(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = open_store(str(tmp_path)), open_store(str(tmp_path), probe=False)
    for key in ("a/read", "b/read", "c/unread", "d/gone", "e/deleted"):
        writer.put(key, b"1")
    synced: list[Path] = []
    monkeypatch.setattr(local, "sync_folder", synced.append)
    for key in ("a/read", "b/read"):
        reader.get(key)
    reader.delete("e/deleted")
    assert {tmp_path / "a", tmp_path / "b"} <= set(synced)
    assert tmp_path / "c" not in synced
    synced.clear()
    reader.read_into("a/read", memoryview(bytearray(1)))
    assert reader.create("a/read", b"2") is False
    assert synced[-2:] == [tmp_path / "a"] * 2  # before its link, and after it
    synced.clear()
    reader.delete("e/deleted")
    assert synced == []


def test_a_folder_that_was_read_and_then_removed_by_hand_holds_nothing_up(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    store.put("runs/r/key", b"1")
    assert store.get("runs/r/key") == b"1"
    shutil.rmtree(tmp_path / "store" / "runs")
    assert store.create("other/key", b"1") is True


def test_a_folder_that_could_not_be_synced_is_synced_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(tmp_path / "store"))
    store.put("a/key", b"1")
    store.get("a/key")

    def fails(folder: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(local, "sync_folder", fails)
        with pytest.raises(StoreUnavailable, match="Cannot delete a/key"):
            store.delete("a/key")
    assert store.get("a/key") == b"1"
    synced: list[Path] = []
    monkeypatch.setattr(local, "sync_folder", synced.append)
    store.delete("a/key")
    assert tmp_path / "store" / "a" in synced


def test_addresses_that_name_no_store_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="gs:// is not a kind of object store"):
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
    with pytest.raises(StoreUnsuitable, match="file cannot be unpacked"):  # no archive of a run
        open_store(str(tmp_path / "file"))
    with pytest.raises(StoreUnavailable, match="there is a file where a folder has to be"):
        open_store(str(tmp_path / "file" / "store"))


def test_a_path_and_its_file_url_are_one_store(tmp_path: Path) -> None:
    folder = tmp_path / "my store"
    open_store(str(folder)).put("key", b"1")
    url = "file://" + str(folder).replace(" ", "%20")
    assert open_store(url, probe=False).get("key") == b"1"
    assert open_store(url, probe=False).url == str(folder)


def test_a_disk_without_inodes_is_reported_as_that_and_not_as_full(tmp_path: Path) -> None:
    mounted = tmp_path / "small"
    mounted.mkdir()
    script = (
        "import sys; from tracks_dagster.stores.local import LocalStore, make_root\n"
        "from pathlib import Path; make_root(Path(sys.argv[1]))\n"
        "store = LocalStore(Path(sys.argv[1]))\n"
        "for n in range(99): store.put(f'a/{n}', b'')\n"
    )
    shell = 'mount -t tmpfs -o size=8m,nr_inodes=40 none "$0" && exec "$@"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", shell, mounted, sys.executable, "-c", script, mounted / "s"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no mounts of one's own here: {done.stderr.strip()}")
    assert "all 40 inodes are in use" in done.stderr
    assert "% of its bytes are free; remove files" in done.stderr
    assert "disk is full" not in done.stderr


def test_a_link_that_leads_to_itself_is_named_and_the_rest_is_listed(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    store = LocalStore(tmp_path / "store")
    for key in ("runs/a/x", "runs/b/x"):
        store.put(key, b"1")
    (tmp_path / "store" / "runs" / "loop").symlink_to("loop")
    (tmp_path / "store" / "runs" / "a" / "loop").symlink_to("loop")
    assert list(store.list("runs/")) == ["runs/a/loop", "runs/a/x", "runs/b/x", "runs/loop"]
    assert list(store.folders("runs/")) == ["a", "b"]
    with pytest.raises(StoreUnavailable, match="runs/a/loop"):
        store.get("runs/a/loop")


def test_of_an_object_that_is_too_large_no_more_is_read_than_shows_that(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    store = LocalStore(tmp_path / "store")
    store.put("a/b", b"x" * 1000)
    assert store.get("a/b", 10) == b"x" * 11
    assert store.get("a/b", 1000) == store.get("a/b") == b"x" * 1000
    assert store.get("a/c", 10) is None
