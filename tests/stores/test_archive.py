"""An archive is the same bytes every time, a store that refuses writes, and refused when it is cut."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tracks_dagster.stores import open_store, try_store
from tracks_dagster.stores.archive import (
    ARCHIVE_FORMAT,
    MANIFEST,
    ArchiveManifest,
    ArchiveStore,
    LeftOut,
    manifest_bytes,
    parse_manifest,
    write_archive,
)
from tracks_dagster.track.errors import InvalidInput, StoreUnsuitable

MEMBERS = {
    "README.txt": b"read me",
    "store/format.json": b'{"format":1,"store_id":"x"}',
    "store/runs/r-1/log/000000000000.json": b"zero",
    "store/runs/r-1/log/000000000001.json": b"one",
    "store/runs/r-10/log/000000000000.json": bytes(range(256)) * 5000,
    f"store/runs/r-1/{'a' * 180}/{'b' * 180}": b"a long key",
    "store/runs/r-1/empty": b"",
}
STATED = ArchiveManifest(
    format=ARCHIVE_FORMAT,
    run_ids=("r-1",),
    head_seqs={"runs/r-1": 1},
    chunks_of=(),
    policy_versions=("3",),
    package_version="0",
    left_out=(LeftOut(what="2 chunks of r-1", why="They are large."),),
    members={"README.txt": "0" * 64},
)


def written(path: Path, members: dict[str, bytes] | None = None) -> Path:
    with write_archive(path) as add:
        for name, data in {**(members or MEMBERS), MANIFEST: manifest_bytes(STATED)}.items():
            add(name, data)
    return path


def test_the_same_members_make_the_same_bytes_whatever_the_file_is_called(tmp_path: Path) -> None:
    one, other = written(tmp_path / "one.tar.gz"), written(tmp_path / "other.tar.gz")
    assert one.read_bytes() == other.read_bytes()


def test_an_archive_is_a_store_of_its_objects(tmp_path: Path) -> None:
    store = open_store(str(written(tmp_path / "r.tar.gz")), probe=False)
    assert store.get("runs/r-1/log/000000000001.json") == b"one"
    assert store.get("runs/r-1/empty") == b""
    assert store.get("README.txt") is None  # no object, a member only
    assert list(store.list("runs/r-1/log/")) == [
        "runs/r-1/log/000000000000.json",
        "runs/r-1/log/000000000001.json",
    ]
    assert list(store.folders("runs/")) == ["r-1", "r-10"]
    assert list(store.folders("")) == ["runs"]
    buffer = bytearray(8)
    assert store.read_into("runs/r-1/log/000000000000.json", memoryview(buffer)) == 4
    assert buffer == b"zero\0\0\0\0"
    assert store.read_into("runs/r-10/log/000000000000.json", memoryview(buffer)) == 1_280_000
    assert bytes(buffer) == bytes(range(8))
    assert store.read_into("no/such", memoryview(buffer)) is None
    assert store.sweep() == 0


def test_an_archive_refuses_every_write_and_to_be_a_store_to_write_to(tmp_path: Path) -> None:
    path = str(written(tmp_path / "r.tar.gz"))
    store = open_store(path, probe=False)
    for write in (store.create, store.put):
        with pytest.raises(StoreUnsuitable, match="can only be read"):
            write("runs/r-1/log/000000000002.json", b"two")
    with pytest.raises(StoreUnsuitable, match="can only be read"):
        store.delete("runs/r-1/empty")
    with pytest.raises(StoreUnsuitable, match="can only be read"):
        open_store(path)
    with pytest.raises(StoreUnsuitable, match="can only be read"):
        try_store(path)


def test_the_manifest_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    assert ArchiveStore(written(tmp_path / "r.tar.gz")).manifest() == STATED


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", manifest_bytes(STATED).replace(b'"format":1', b'"format":9')]
)
def test_a_manifest_that_is_not_one_or_of_another_format_is_refused(data: bytes) -> None:
    with pytest.raises(StoreUnsuitable):
        parse_manifest(data)


def test_a_file_that_is_there_is_replaced_only_with_overwrite(tmp_path: Path) -> None:
    path = written(tmp_path / "r.tar.gz")
    with pytest.raises(InvalidInput, match="--force"), write_archive(path):
        pass
    with write_archive(path, overwrite=True) as add:
        add("README.txt", b"new")
    assert ArchiveStore(path).names() == ["README.txt"]


def test_an_export_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), write_archive(tmp_path / "r.tar.gz") as add:  # noqa: PT012
        add("README.txt", b"half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InvalidInput, match="Cannot write"):  # noqa: SIM117
        with write_archive(tmp_path / "no" / "folder.tar.gz"):
            pass


def test_what_is_not_an_archive_or_was_cut_or_changed_on_its_way_is_refused(tmp_path: Path) -> None:
    whole = written(tmp_path / "r.tar.gz").read_bytes()
    flipped = bytearray(gzip.decompress(whole))
    flipped[5] ^= 1  # in a header, whose own sum no longer holds
    changed = {
        "text": b"this is not an archive",
        "empty": b"",
        "half": whole[: len(whole) // 2],
        "tail": whole[:-4],
        "middle": whole[:300] + bytes([whole[300] ^ 255]) + whole[301:],
        "header": gzip.compress(bytes(flipped)),
    }
    for name, data in changed.items():
        path = tmp_path / f"{name}.tar.gz"
        path.write_bytes(data)
        with pytest.raises(StoreUnsuitable):
            ArchiveStore(path).manifest()
    with pytest.raises(InvalidInput, match="There is no archive"):
        ArchiveStore(tmp_path / "none.tar.gz")
